"""Sandboxes with many living ancestors get a memory of their own, with a scripted machine."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.engine.cells.sandbox import Sandbox
from tests.unit.scripted import ScriptedBody
from tests.unit.scripted_engine import SETTINGS, Call, Engine, finish, run
from tests.waiting import until

DEEP = 20
IMPATIENT = replace(SETTINGS, flatten_idle_seconds=0.001, history_disk_bytes=2**30)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """One whose first body has many ancestors."""
    engine = Engine(tmp_path, IMPATIENT)
    make = engine.machine._body

    def body() -> ScriptedBody:
        made = make()
        made.ancestors = DEEP if len(engine.machine.bodies) == 1 else 0
        return made

    monkeypatch.setattr(engine.machine, "_body", body)
    monkeypatch.setattr("ramet.engine.history.flattener.resident_bytes", lambda _: 2**20)
    return engine


async def forked_once(engine: Engine) -> tuple[Sandbox, ScriptedBody]:
    sandbox, body = await engine.used()
    await engine.registry.close_sandbox((await engine.fork(sandbox)).sandboxes[0].id)
    return sandbox, body


async def test_an_idle_sandbox_goes_on_as_what_was_poured_from_its_image_and_nothing_is_left(engine: Engine) -> None:
    sandbox, old = await forked_once(engine)
    await until(lambda: sandbox.body is not old)
    new = engine.machine.bodies[-1]
    assert sandbox.body is new
    await until(lambda: old.closed)
    assert signal.SIGSTOP in old.signals
    assert signal.SIGCONT not in old.signals
    assert await run(sandbox, new) == 2
    assert engine.machine.based_on == [None, "past-" + engine.machine.whose[0] + "-1"]
    await until(lambda: engine.machine.images == {})
    await engine.registry.close()
    assert all(frozen.closed for frozen in engine.machine.snapshots)
    assert engine.machine.left_open == []


async def test_a_cell_that_comes_meanwhile_runs_at_once_in_the_sandbox_as_it_is(engine: Engine) -> None:
    first = engine.machine.gate("write_point")
    sandbox, old = await forked_once(engine)
    await until(lambda: len(engine.machine.based_on) == 1)
    # Another gate before the first opens: the second write may begin at once.
    del engine.machine.gates["write_point"]
    gate = engine.machine.gate("write_point")
    first.set()
    await until(lambda: len(engine.machine.based_on) == 2)
    call = Call(sandbox)
    assert await finish(call, old) == 2
    assert old.signals[-1] == signal.SIGCONT
    gate.set()
    await engine.registry.close()
    assert all(frozen.closed for frozen in engine.machine.snapshots)


async def test_a_sandbox_that_a_copy_could_not_stand_in_for_is_left_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.scripted.ScriptedFrozen.faithful", False)
    sandbox, old = await forked_once(engine)
    await until(lambda: bool(engine.machine.snapshots) and engine.machine.snapshots[0].closed)
    assert sandbox.body is old
    assert engine.machine.based_on == []
    assert await run(sandbox, old) == 2
    await engine.registry.close()


async def test_a_sandbox_that_has_children_still_shares_its_memory_with_them(engine: Engine) -> None:
    sandbox, old = await engine.used()
    (child,) = (await engine.fork(sandbox)).sandboxes
    (other,) = (await engine.fork(sandbox)).sandboxes
    await engine.registry.close_sandbox(child.id)
    await until(lambda: not engine.registry.history._flattener._timers)
    assert (sandbox.body, engine.machine.based_on) == (old, [])
    await engine.registry.close_sandbox(other.id)
    await engine.registry.close()
