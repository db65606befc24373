"""Lifetimes: when a sandbox ends by itself, when it does not, and what is said of it afterwards.

Where something must not happen, another sandbox to which it does happen is waited for: no time is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller
from ramet.engine.making import thaw
from ramet.engine.making.lifetimes import Tombstone, Tombstones
from ramet.errors import ExecutionCancelled, InvalidArgument, SandboxClosed
from ramet.protocol import calls
from ramet.protocol.values.specs import Lifetime, SandboxSpec, ThawSpec
from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import SPEC, Call, Engine, run, take
from tests.waiting import until

Connect = Callable[[], Client]
SHORT = 0.03
LONG = 1000.0


def lasting(timeout: float | None = None, idle: float | None = None) -> SandboxSpec:
    return replace(SPEC, lifetime=Lifetime(timeout, idle))


def lives(engine: Engine, sandbox: Sandbox) -> bool:
    return sandbox in engine.registry.all_of(None)


async def others_end(engine: Engine, spec: SandboxSpec) -> None:
    """Wait for as long as a sandbox of this kind lives."""
    witness = await engine.create(spec)
    await until(lambda: not lives(engine, witness))


def cause(engine: Engine, sandbox: Sandbox) -> tuple[object, str]:
    with pytest.raises(SandboxClosed) as caught:
        engine.registry.find(sandbox.id)
    assert isinstance(caught.value.details["ended_ms"], int)
    return caught.value.details["cause"], caught.value.message


async def test_a_sandbox_ends_when_its_time_is_over_and_its_cells_are_told_so(engine: Engine) -> None:
    sandbox = await engine.create(lasting(timeout=SHORT))
    running, waiting = Call(sandbox), Call(sandbox)
    for call in (running, waiting):
        with pytest.raises(ExecutionCancelled, match=f"sandbox {sandbox.id} ended: its lifetime was over"):
            await call.outcome()
    assert cause(engine, sandbox)[0] == "timeout"
    await until(lambda: engine.machine.bodies[0].closed)


async def test_a_sandbox_ends_when_it_is_not_used(engine: Engine) -> None:
    sandbox, body = await engine.used(lasting(idle=SHORT))
    await until(lambda: not lives(engine, sandbox))
    assert cause(engine, sandbox) == ("idle", f"sandbox {sandbox.id} ended: it was not used for 0.03 seconds")
    await until(lambda: body.closed)


async def test_a_sandbox_that_runs_a_cell_is_used(engine: Engine) -> None:
    spec = lasting(idle=SHORT)
    sandbox = await engine.create(spec)
    call = Call(sandbox)
    await others_end(engine, spec)
    assert lives(engine, sandbox)
    engine.machine.bodies[0].done(1)
    await call.outcome()
    assert lives(engine, sandbox)  # it counts from the end of the cell
    await until(lambda: not lives(engine, sandbox))


async def test_a_sandbox_in_a_turn_or_in_a_file_call_is_used(engine: Engine) -> None:
    spec = lasting(idle=SHORT)
    turning, _ = await engine.used(spec)
    gate = engine.machine.gate("freeze")
    forking = engine.fork(turning)
    reading = await engine.create(spec)
    call = reading.file_call()
    await others_end(engine, spec)
    assert lives(engine, turning)
    assert lives(engine, reading)
    call.set_result(None)
    gate.set()
    await forking
    await until(lambda: not engine.registry.all_of(None))


async def test_a_lifetime_is_extended_from_now(engine: Engine, connect: Connect) -> None:
    spec = lasting(timeout=SHORT, idle=SHORT)
    sandbox = await engine.create(spec)
    client = connect()
    before_ms = sandbox.clock.created_ms - 10  # of rounding
    answer = await client.ask(calls.EXTEND, sandbox=sandbox.id, timeout_seconds=LONG, idle_timeout_seconds=2 * LONG)
    assert int(str(answer.header["expires_ms"])) >= before_ms + LONG * 1000
    assert int(str(answer.header["idle_expires_ms"])) >= before_ms + 2 * LONG * 1000
    await others_end(engine, spec)
    assert lives(engine, sandbox)
    # What is not given stays; shorter is also possible.
    answer = await client.ask(calls.EXTEND, sandbox=sandbox.id, timeout_seconds=None, idle_timeout_seconds=SHORT)
    assert int(str(answer.header["expires_ms"])) >= before_ms + LONG * 1000
    await until(lambda: not lives(engine, sandbox))
    assert cause(engine, sandbox)[0] == "idle"


@pytest.mark.parametrize("wrong", [0, -1, 1e12])
async def test_lifetimes_that_make_no_sense_are_refused(engine: Engine, connect: Connect, wrong: float) -> None:
    sandbox, _ = await engine.used()
    client = connect()
    for name in ("timeout_seconds", "idle_timeout_seconds"):
        with pytest.raises(InvalidArgument, match=name):
            await client.ask(calls.EXTEND, sandbox=sandbox.id, **{name: wrong})
        with pytest.raises(InvalidArgument, match=name):
            await engine.create(replace(SPEC, lifetime=Lifetime(**{name: wrong})))


async def test_a_child_has_the_lifetime_of_its_parent_counted_from_the_fork(engine: Engine) -> None:
    parent, _ = await engine.used(lasting(timeout=LONG, idle=LONG))
    parent.clock.extend(2 * LONG, None)
    child = (await engine.fork(parent)).sandboxes[0]
    assert child.identity.parent == parent.id
    assert child.clock.expires_ms == pytest.approx(child.clock.created_ms + LONG * 1000, abs=100)
    assert child.clock.created_ms >= parent.clock.created_ms


async def test_a_thawed_sandbox_has_the_lifetime_it_is_given_or_that_of_the_frozen_one(engine: Engine) -> None:
    sandbox, _ = await engine.used(lasting(timeout=LONG))
    taken = await take(engine, sandbox)
    for given, seconds in ((None, LONG), (Lifetime(2 * LONG), 2 * LONG)):
        thawed = await thaw.thaw(engine.registry, ThawSpec(taken.id, None, lifetime=given), Caller())
        assert thawed.clock.expires_ms == pytest.approx(thawed.clock.created_ms + seconds * 1000, abs=100)


async def test_a_restore_and_a_merge_leave_the_lifetime_of_the_id(engine: Engine) -> None:
    parent, _ = await engine.used(lasting(timeout=LONG))
    winner, _ = await engine.used(lasting(timeout=SHORT))
    winner.clock.extend(LONG, None)
    expires_ms = parent.clock.expires_ms
    await engine.merge(parent, winner)
    assert (parent.clock.expires_ms, parent.spec.lifetime) == (expires_ms, Lifetime(LONG))
    assert cause(engine, winner)[0] == "merged"
    taken = await take(engine, parent)
    await thaw.restore(engine.registry, parent, taken, engine.caller)
    assert parent.clock.expires_ms == expires_ms


async def test_a_merged_sandbox_does_not_end_its_successor(engine: Engine) -> None:
    parent, _ = await engine.used()
    spec = lasting(timeout=10 * SHORT)  # not over before the merge, on a busy machine either
    winner = await engine.create(spec)
    await engine.merge(parent, winner)
    await others_end(engine, spec)
    assert lives(engine, parent)
    await run(parent, engine.machine.bodies[1])


async def test_a_closed_sandbox_is_told_from_one_that_never_was(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    await engine.registry.close_sandbox(sandbox.id)
    assert cause(engine, sandbox) == ("closed", f"sandbox {sandbox.id} was closed")
    with pytest.raises(SandboxClosed) as caught:
        engine.registry.find("sbx_never")
    assert caught.value.details == {}


def test_what_is_known_of_the_ended_is_bounded() -> None:
    stones = Tombstones(2)
    for number in range(3):
        stones.add(str(number), Tombstone("me", "closed", "", 0))
    assert [stones.find(str(number), None) is not None for number in range(3)] == [False, True, True]
    assert stones.find("2", "you") is None


async def test_nothing_rings_after_the_engine_was_closed(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    sandbox = await engine.create(lasting(timeout=LONG, idle=LONG))
    await engine.registry.close()
    assert sandbox.clock._timer is None


async def test_a_close_that_nobody_waits_for_is_seen_at_once(engine: Engine, connect: Connect) -> None:
    client = connect()
    sandbox = await engine.create(SPEC)
    await client.ask(calls.CLOSE, sandbox=sandbox.id, wait=False)
    with pytest.raises(SandboxClosed, match="was closed"):
        await client.ask(calls.INFO, sandbox=sandbox.id)
