"""Fork in the engine, with a scripted machine: order, failure, who may leave when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ramet.engine.cells.turns import Caller
from ramet.errors import ExecutionCancelled, ForkFailed, LimitReached, SandboxClosed
from ramet.protocol import guest
from ramet.protocol.frames import encode
from ramet.protocol.values.specs import Interpreter, TemplateSpec
from tests.unit.scripted import ScriptedDeath
from tests.unit.scripted_engine import SETTINGS, SPEC, Call, Engine, finish, run, work
from tests.waiting import settle, until

OLD_PYTHON = replace(
    SPEC, template=TemplateSpec("default", Interpreter("/usr/bin/python3", "3.11.2", (), (), None), (), builtin=True)
)


async def test_a_fork_gives_children_that_run_cells_and_says_what_they_cost(engine: Engine) -> None:
    parent, body = await engine.used()
    children = await engine.fork(parent, 3)
    assert len({parent.id, *(child.id for child in children.sandboxes)}) == 4
    assert (children.info.pause_seconds, children.info.unique_bytes, children.info.file_bytes_copied) == (
        0.001,
        300,
        10,
    )
    assert [info.unique_bytes for info in children.each] == [100, 100, 100]
    for child, child_body in zip(children.sandboxes, engine.machine.bodies[1:], strict=True):
        assert engine.registry.find(child.id) is child
        assert await run(child, child_body) == 2
    assert await run(parent, body) == 2


async def test_a_fork_waits_for_cells_before_it_and_holds_up_those_behind_only_for_the_pause(engine: Engine) -> None:
    parent, body = await engine.used()
    freeze, thaw = engine.machine.gate("freeze"), engine.machine.gate("thaw")
    before = Call(parent, b"before")
    fork = engine.fork(parent)
    after = Call(parent, b"after")
    await body.next_frame()
    await settle()
    assert not engine.machine.kept_pids
    body.done(2)
    await before.outcome()
    await until(lambda: "freeze" in engine.machine.reached)
    await settle()
    assert body.silent()
    freeze.set()
    assert (await body.next_frame()).blob == b"after"
    body.done(3)
    await after.outcome()
    await settle()
    assert not fork.done()
    thaw.set()
    assert len((await fork).sandboxes) == 1


async def test_a_sandbox_without_a_cell_draws_its_own_numbers_before_its_children_do(engine: Engine) -> None:
    parent = await engine.create(SPEC)
    fork = engine.fork(parent, 2)
    frame = await engine.machine.bodies[0].configured()
    assert frame.header == {"env": {}, "cwd": None}
    children = await fork
    grandchildren = await engine.fork(children.sandboxes[0])
    assert len(grandchildren.sandboxes) == 1
    assert engine.machine.bodies[1].silent()


async def test_a_dead_repl_is_started_again_before_it_is_forked_and_the_children_tell(engine: Engine) -> None:
    parent, body = await engine.used()
    body.die(ScriptedDeath(1, None))
    await until(lambda: parent.state == "lost")
    fork = engine.fork(parent)
    await until(lambda: body.revivals == 1)
    await body.configured()
    (child,) = (await fork).sandboxes
    for sandbox, its in ((child, engine.machine.bodies[1]), (parent, body)):
        call = Call(sandbox)
        frame = await its.next_frame()
        its.done(int(str(frame.header["id"])))
        assert (await call.outcome()).restarted


async def test_children_are_told_only_what_they_cannot_know(engine: Engine) -> None:
    parent, _ = await engine.used()
    fork = engine.fork(parent, 2, reseed=True)
    await until(lambda: len(engine.machine.bodies) == 3)
    for body in engine.machine.bodies[1:]:
        frame = await body.configured(guest.THAWED)
        assert frame.header == {"reseed": True, "stir": False}
    await fork
    assert engine.machine.kept_pids == [False]


async def test_an_old_python_with_a_running_loop_keeps_its_process_id_and_stirs(engine: Engine) -> None:
    parent, body = await engine.used(OLD_PYTHON)
    for running in (True, False):
        fork = engine.fork(parent)
        assert (await body.next_frame()).kind == guest.ASK_LOOPS
        body.send(encode(guest.LOOPS, {"running": running}))
        if running:
            await until(lambda: len(engine.machine.bodies) == 2)
            frame = await engine.machine.bodies[1].configured(guest.THAWED)
            assert frame.header == {"reseed": False, "stir": True}
        await fork
    assert engine.machine.kept_pids == [True, False]


@pytest.mark.parametrize("step", ["freeze", "thaw"])
async def test_a_fork_that_fails_is_told_and_the_parent_goes_on(engine: Engine, step: str) -> None:
    parent, body = await engine.used()
    engine.machine.failing = step
    with pytest.raises(ForkFailed, match=step):
        await engine.fork(parent, 5)
    assert await run(parent, body) == 2
    engine.machine.failing = None
    assert len((await engine.fork(parent)).sandboxes) == 1


async def test_a_child_that_dies_while_it_is_told_fails_the_fork_and_all_are_closed(engine: Engine) -> None:
    parent, body = await engine.used()
    fork = engine.fork(parent, 2, reseed=True)
    await until(lambda: len(engine.machine.bodies) == 3)
    one, other = engine.machine.bodies[1:]
    one.die(ScriptedDeath(None, 9))
    await other.configured(guest.THAWED)
    with pytest.raises(ForkFailed, match="a child ended"):
        await fork
    assert one.closed
    assert other.closed
    assert await run(parent, body) == 2


async def test_a_caller_that_leaves_before_its_turn_gets_no_fork(engine: Engine) -> None:
    parent, body = await engine.used()
    running = Call(parent)
    caller = Caller()
    fork = engine.fork(parent, caller=caller)
    after = Call(parent, b"after")
    await until(lambda: parent.queue.waiting == 2)
    caller.leave()
    with pytest.raises(ExecutionCancelled):
        await fork
    await finish(running, body)
    await finish(after, body)
    assert not engine.machine.kept_pids


@pytest.mark.parametrize("step", ["freeze", "thaw"])
async def test_children_of_a_caller_that_left_meanwhile_are_closed(engine: Engine, step: str) -> None:
    parent, body = await engine.used()
    gate = engine.machine.gate(step)
    caller = Caller()
    fork = engine.fork(parent, 3, caller=caller)
    await until(lambda: bool(engine.machine.kept_pids))
    caller.leave()
    gate.set()
    with pytest.raises(ExecutionCancelled):
        await fork
    assert [body.closed for body in engine.machine.bodies] == [False, True, True, True]
    assert await run(parent, body) == 2


async def test_a_parent_that_is_closed_in_the_pause_is_closed_after_it_and_its_children_live(engine: Engine) -> None:
    parent, body = await engine.used()
    gate = engine.machine.gate("freeze")
    fork = engine.fork(parent)
    await until(lambda: bool(engine.machine.kept_pids))
    closing = work(engine.registry.close_sandbox(parent.id))
    await settle()
    assert not body.closed
    gate.set()
    await closing
    assert body.closed
    (child,) = (await fork).sandboxes
    await run(child, engine.machine.bodies[1])


async def test_a_parent_that_is_closed_while_a_fork_waits_gives_none(engine: Engine) -> None:
    parent, _ = await engine.used()
    Call(parent).cell.on_error = lambda error: None
    fork = engine.fork(parent)
    await until(lambda: parent.queue.waiting == 1)
    await engine.registry.close_sandbox(parent.id)
    with pytest.raises(SandboxClosed):
        await fork
    with pytest.raises(SandboxClosed):
        engine.fork(parent)


async def test_forks_count_as_waiting(tmp_path: Path) -> None:
    engine = Engine(tmp_path, replace(SETTINGS, waiting_cells=1))
    parent, body = await engine.used()
    running = Call(parent)
    first = engine.fork(parent)
    with pytest.raises(LimitReached):
        engine.fork(parent)
    await finish(running, body)
    await first
    await engine.registry.close()
