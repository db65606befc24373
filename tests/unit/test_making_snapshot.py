"""Snapshots in the engine, with a scripted machine: thawed, named, counted, closed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ramet.engine.cells.turns import Caller
from ramet.engine.making import thaw
from ramet.errors import ExecutionCancelled, InvalidArgument, LimitReached, SandboxClosed
from ramet.protocol.values.specs import ThawSpec
from tests.unit.scripted_engine import SETTINGS, SPEC, Engine, take, work
from tests.waiting import until


async def test_a_snapshot_is_thawed_any_number_of_times_with_what_is_asked_for_on_top(engine: Engine) -> None:
    spec = replace(SPEC, environment=(("A", "1"), ("B", "2")))
    creating = work(engine.create(spec))
    await until(lambda: bool(engine.machine.bodies))
    await engine.machine.bodies[0].configured()
    taken = await take(engine, await creating)
    plain = await thaw.thaw(engine.registry, ThawSpec(taken.id, None), engine.caller)
    assert plain.spec == spec
    assert engine.machine.bodies[1].silent()
    asked = ThawSpec(taken.id, None, pids=7, environment=(("B", "3"),), cwd="/tmp")
    thawing = work(thaw.thaw(engine.registry, asked, engine.caller))
    await until(lambda: len(engine.machine.bodies) == 3)
    frame = await engine.machine.bodies[2].configured()
    assert frame.header == {"env": {"B": "3"}, "cwd": "/tmp"}
    changed = await thawing
    assert changed.spec.limits == replace(SPEC.limits, pids=7)
    assert dict(changed.spec.environment) == {"A": "1", "B": "3"}
    assert [limits for limits, _ in engine.machine.thawed_with] == [SPEC.limits, changed.spec.limits]


async def test_a_wrong_folder_for_a_thawed_sandbox_is_a_bad_argument_and_leaves_nothing(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    taken = await take(engine, sandbox)
    thawing = work(thaw.thaw(engine.registry, ThawSpec(taken.id, None, cwd="/nowhere"), engine.caller))
    await until(lambda: len(engine.machine.bodies) == 2)
    await engine.machine.bodies[1].configured(error="no such folder")
    with pytest.raises(InvalidArgument, match="cwd"):
        await thawing
    assert engine.machine.bodies[1].closed
    with pytest.raises(InvalidArgument, match="pids"):
        await thaw.thaw(engine.registry, ThawSpec(taken.id, None, pids=1), engine.caller)


async def test_a_snapshot_that_is_closed_while_it_is_thawed_is_closed_afterwards(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    taken = await take(engine, sandbox)
    gate = engine.machine.gate("thaw")
    thawing = work(thaw.thaw(engine.registry, ThawSpec(taken.id, None, history=False), engine.caller))
    await until(lambda: "thaw" in engine.machine.reached)
    await engine.registry.snapshots.drop(taken.id)
    await engine.registry.snapshots.drop(taken.id)
    assert not engine.machine.snapshots[0].closed
    gate.set()
    await thawing
    assert engine.machine.snapshots[0].closed
    with pytest.raises(SandboxClosed):
        await thaw.thaw(engine.registry, ThawSpec(taken.id, None), engine.caller)


async def test_a_snapshot_outlives_its_sandbox_and_a_saved_one_its_handle(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    taken = await take(engine, sandbox)
    await engine.registry.close_sandbox(sandbox.id)
    snapshots = engine.registry.snapshots
    snapshots.save(taken, "mine", taken=False)
    await snapshots.drop(taken.id)
    assert not engine.machine.snapshots[0].closed
    thawed = await thaw.thaw(engine.registry, ThawSpec(None, "mine"), engine.caller)
    assert thawed.state == "idle"
    with pytest.raises(InvalidArgument, match="other"):
        await thaw.thaw(engine.registry, ThawSpec(None, "other"), engine.caller)


async def test_a_name_is_given_once(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    taken = await take(engine, sandbox)
    snapshots = engine.registry.snapshots
    for name in ("default", "python-datasci", "", "a b", "x" * 65):
        with pytest.raises(InvalidArgument):
            snapshots.save(taken, name, taken=False)
    with pytest.raises(InvalidArgument, match="must be one that no template has yet"):
        snapshots.save(taken, "known", taken=True)
    snapshots.save(taken, "mine", taken=False)
    with pytest.raises(InvalidArgument, match="must be one that no template has yet"):
        snapshots.save(taken, "mine", taken=False)
    own = replace(SPEC, template=replace(SPEC.template, name="mine", builtin=False))
    with pytest.raises(InvalidArgument, match="is already saved as 'mine'"):
        await engine.create(own)
    await snapshots.drop(taken.id)


async def test_snapshots_are_bounded(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    for _ in range(SETTINGS.snapshots):
        await take(engine, sandbox)
    with pytest.raises(LimitReached):
        thaw.snapshot(engine.registry, sandbox, engine.caller)


async def test_a_snapshot_of_a_caller_that_left_is_closed(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    gate = engine.machine.gate("freeze")
    caller = Caller()
    taking = work(thaw.snapshot(engine.registry, sandbox, caller))
    await until(lambda: bool(engine.machine.kept_pids))
    caller.leave()
    gate.set()
    with pytest.raises(ExecutionCancelled):
        await taking
    assert engine.machine.snapshots[0].closed
