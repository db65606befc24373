"""Restore in the engine, with a scripted machine: order, failure, closing meanwhile."""

from __future__ import annotations

import pytest

from ramet.engine.making import thaw
from ramet.errors import ForkFailed, SandboxClosed
from tests.unit.scripted import ScriptedDeath
from tests.unit.scripted_engine import SPEC, Call, Engine, finish, run, take, work
from tests.waiting import until


async def test_a_restore_waits_its_turn_and_later_cells_run_in_the_old_state(engine: Engine) -> None:
    sandbox, body = await engine.used()
    taken = await take(engine, sandbox)
    assert await run(sandbox, body) == 2
    before = Call(sandbox, b"before")
    restoring = work(thaw.restore(engine.registry, sandbox, taken, engine.caller))
    await until(lambda: sandbox.queue.waiting == 1)
    after = Call(sandbox, b"after")
    assert await finish(before, body) == 3
    await restoring
    assert await finish(after, engine.machine.bodies[1]) == 4
    await until(lambda: body.closed)
    assert engine.machine.thawed_with == [(SPEC.limits, SPEC.mounts)]
    again = work(thaw.restore(engine.registry, sandbox, taken, engine.caller))
    await again
    assert len(engine.machine.bodies) == 3


async def test_a_sandbox_is_restored_after_its_repl_died_without_reviving_it(engine: Engine) -> None:
    sandbox, body = await engine.used()
    taken = await take(engine, sandbox)
    body.die(ScriptedDeath(1, None))
    await thaw.restore(engine.registry, sandbox, taken, engine.caller)
    assert body.revivals == 0
    call = Call(sandbox)
    frame = await engine.machine.bodies[1].next_frame()
    engine.machine.bodies[1].done(int(str(frame.header["id"])))
    assert not (await call.outcome()).restarted


async def test_a_restore_that_fails_changes_nothing(engine: Engine) -> None:
    sandbox, body = await engine.used()
    taken = await take(engine, sandbox)
    engine.machine.failing = "thaw"
    with pytest.raises(ForkFailed):
        await thaw.restore(engine.registry, sandbox, taken, engine.caller)
    assert await run(sandbox, body) == 2


async def test_a_sandbox_that_is_closed_while_it_is_restored_stays_closed(engine: Engine) -> None:
    sandbox, body = await engine.used()
    taken = await take(engine, sandbox)
    gate = engine.machine.gate("thaw")
    restoring = work(thaw.restore(engine.registry, sandbox, taken, engine.caller))
    await until(lambda: "thaw" in engine.machine.reached)
    closing = work(engine.registry.close_sandbox(sandbox.id))
    await until(lambda: sandbox.state == "closed")
    gate.set()
    with pytest.raises(SandboxClosed):
        await restoring
    await closing
    assert body.closed
    assert engine.machine.bodies[1].closed
