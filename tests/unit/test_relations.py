"""Fork, snapshot, restore, merge, diff in the engine, with a scripted machine: order, failure, who may leave when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ramet.engine import relations
from ramet.engine.registry import Registry
from ramet.engine.sandbox import Sandbox
from ramet.engine.seams import Machine
from ramet.engine.settings import Settings
from ramet.engine.turn import Caller
from ramet.errors import (
    ExecutionCancelled,
    ForkFailed,
    InvalidArgument,
    LimitReached,
    SandboxClosed,
    SandboxLost,
)
from ramet.protocol import guest
from ramet.protocol.frames import encode
from ramet.protocol.specs import Interpreter, SandboxSpec, TemplateSpec, ThawSpec
from tests.unit.scripted import ScriptedBody, ScriptedDeath, ScriptedMachine
from tests.unit.test_sandbox_queue import QUICK, SPEC, Call, until

OLD_PYTHON = replace(
    SPEC, template=TemplateSpec("default", Interpreter("/usr/bin/python3", "3.11.2", (), (), None), (), builtin=True)
)
SETTINGS = replace(QUICK, configure_seconds=2.0, retire_seconds=0.05, snapshots=3, waiting_cells=10)


class Engine:
    """A registry over a scripted machine, and what a test asks of it."""

    def __init__(self, root: Path, settings: Settings = SETTINGS) -> None:
        self.machine = ScriptedMachine(root)
        self.registry = Registry(self._start, settings)
        self.caller = Caller()

    async def _start(self) -> Machine:
        return cast(Machine, self.machine)

    async def used(self, spec: SandboxSpec = SPEC) -> tuple[Sandbox, ScriptedBody]:
        """A sandbox that has run a cell."""
        sandbox = await self.registry.create(spec)
        body = self.machine.bodies[-1]
        call = Call(sandbox)
        await body.next_frame()
        body.done(1)
        await call.outcome()
        return sandbox, body

    def fork(self, parent: Sandbox, count: int = 1, reseed: bool = False, caller: Caller | None = None) -> Work:
        return work(relations.fork(self.registry, parent, count, reseed, caller or self.caller))

    def merge(self, parent: Sandbox, winner: Sandbox, caller: Caller | None = None) -> Work:
        return work(relations.merge(self.registry, parent, winner, caller or self.caller))


Work = asyncio.Task[Any]


def work(awaitable: Awaitable[Any]) -> Work:
    return asyncio.ensure_future(bounded(awaitable))


async def bounded(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(5):
        return await awaitable


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    await engine.registry.close()
    assert all(body.closed for body in engine.machine.bodies)
    assert all(frozen.closed for frozen in engine.machine.snapshots)


async def run(sandbox: Sandbox, body: ScriptedBody, code: bytes = b"") -> int:
    """Run a cell to its end; gives its id."""
    call = Call(sandbox, code)
    return await finish(call, body)


async def finish(call: Call, body: ScriptedBody) -> int:
    frame = await body.next_frame()
    assert frame.kind == guest.RUN
    body.done(int(str(frame.header["id"])))
    return (await call.outcome()).cell_id


# Fork


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
    await asyncio.sleep(0)
    assert not engine.machine.kept_pids
    body.done(2)
    await before.outcome()
    await until(lambda: bool(engine.machine.kept_pids))
    assert body.silent()
    freeze.set()
    assert (await body.next_frame()).blob == b"after"
    body.done(3)
    await after.outcome()
    assert not fork.done()
    thaw.set()
    assert len((await fork).sandboxes) == 1


async def test_a_sandbox_without_a_cell_draws_its_own_numbers_before_its_children_do(engine: Engine) -> None:
    parent = await engine.registry.create(SPEC)
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
    await asyncio.sleep(0)
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
    await asyncio.sleep(0.01)
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
    await asyncio.sleep(0)
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


# Snapshots


async def take(engine: Engine, sandbox: Sandbox) -> Any:
    return await work(relations.snapshot(engine.registry, sandbox, engine.caller))


async def test_a_snapshot_is_thawed_any_number_of_times_with_what_is_asked_for_on_top(engine: Engine) -> None:
    spec = replace(SPEC, environment=(("A", "1"), ("B", "2")))
    creating = work(engine.registry.create(spec))
    await until(lambda: bool(engine.machine.bodies))
    await engine.machine.bodies[0].configured()
    taken = await take(engine, await creating)
    plain = await relations.thaw(engine.registry, ThawSpec(taken.id, None), engine.caller)
    assert plain.spec == spec
    assert engine.machine.bodies[1].silent()
    asked = ThawSpec(taken.id, None, pids=7, environment=(("B", "3"),), cwd="/tmp")
    thawing = work(relations.thaw(engine.registry, asked, engine.caller))
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
    thawing = work(relations.thaw(engine.registry, ThawSpec(taken.id, None, cwd="/nowhere"), engine.caller))
    await until(lambda: len(engine.machine.bodies) == 2)
    await engine.machine.bodies[1].configured(error="no such folder")
    with pytest.raises(InvalidArgument, match="cwd"):
        await thawing
    assert engine.machine.bodies[1].closed
    with pytest.raises(InvalidArgument, match="pids"):
        await relations.thaw(engine.registry, ThawSpec(taken.id, None, pids=1), engine.caller)


async def test_a_snapshot_that_is_closed_while_it_is_thawed_is_closed_afterwards(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    taken = await take(engine, sandbox)
    gate = engine.machine.gate("thaw")
    thawing = work(relations.thaw(engine.registry, ThawSpec(taken.id, None), engine.caller))
    await asyncio.sleep(0.01)
    await engine.registry.snapshots.drop(taken.id)
    await engine.registry.snapshots.drop(taken.id)
    assert not engine.machine.snapshots[0].closed
    gate.set()
    await thawing
    assert engine.machine.snapshots[0].closed
    with pytest.raises(SandboxClosed):
        await relations.thaw(engine.registry, ThawSpec(taken.id, None), engine.caller)


async def test_a_snapshot_outlives_its_sandbox_and_a_saved_one_its_handle(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    taken = await take(engine, sandbox)
    await engine.registry.close_sandbox(sandbox.id)
    snapshots = engine.registry.snapshots
    snapshots.save(taken, "mine", taken=False)
    await snapshots.drop(taken.id)
    assert not engine.machine.snapshots[0].closed
    thawed = await relations.thaw(engine.registry, ThawSpec(None, "mine"), engine.caller)
    assert thawed.state == "idle"
    with pytest.raises(InvalidArgument, match="other"):
        await relations.thaw(engine.registry, ThawSpec(None, "other"), engine.caller)


async def test_a_name_is_given_once(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    taken = await take(engine, sandbox)
    snapshots = engine.registry.snapshots
    for name in ("default", "python-datasci", "", "a b", "x" * 65):
        with pytest.raises(InvalidArgument):
            snapshots.save(taken, name, taken=False)
    with pytest.raises(InvalidArgument, match="already"):
        snapshots.save(taken, "known", taken=True)
    snapshots.save(taken, "mine", taken=False)
    with pytest.raises(InvalidArgument, match="already"):
        snapshots.save(taken, "mine", taken=False)
    own = replace(SPEC, template=replace(SPEC.template, name="mine", builtin=False))
    with pytest.raises(InvalidArgument, match="was saved as 'mine'"):
        await engine.registry.create(own)
    await snapshots.drop(taken.id)


async def test_snapshots_are_bounded(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    for _ in range(SETTINGS.snapshots):
        await take(engine, sandbox)
    with pytest.raises(LimitReached):
        relations.snapshot(engine.registry, sandbox, engine.caller)


async def test_a_snapshot_of_a_caller_that_left_is_closed(engine: Engine) -> None:
    sandbox, _ = await engine.used()
    gate = engine.machine.gate("freeze")
    caller = Caller()
    taking = work(relations.snapshot(engine.registry, sandbox, caller))
    await until(lambda: bool(engine.machine.kept_pids))
    caller.leave()
    gate.set()
    with pytest.raises(ExecutionCancelled):
        await taking
    assert engine.machine.snapshots[0].closed


# Restore


async def test_a_restore_waits_its_turn_and_later_cells_run_in_the_old_state(engine: Engine) -> None:
    sandbox, body = await engine.used()
    taken = await take(engine, sandbox)
    assert await run(sandbox, body) == 2
    before = Call(sandbox, b"before")
    restoring = work(relations.restore(engine.registry, sandbox, taken, engine.caller))
    await asyncio.sleep(0)
    after = Call(sandbox, b"after")
    assert await finish(before, body) == 3
    await restoring
    assert await finish(after, engine.machine.bodies[1]) == 4
    await until(lambda: body.closed)
    assert engine.machine.thawed_with == [(SPEC.limits, SPEC.mounts)]
    again = work(relations.restore(engine.registry, sandbox, taken, engine.caller))
    await again
    assert len(engine.machine.bodies) == 3


async def test_a_sandbox_is_restored_after_its_repl_died_without_reviving_it(engine: Engine) -> None:
    sandbox, body = await engine.used()
    taken = await take(engine, sandbox)
    body.die(ScriptedDeath(1, None))
    await relations.restore(engine.registry, sandbox, taken, engine.caller)
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
        await relations.restore(engine.registry, sandbox, taken, engine.caller)
    assert await run(sandbox, body) == 2


async def test_a_sandbox_that_is_closed_while_it_is_restored_stays_closed(engine: Engine) -> None:
    sandbox, body = await engine.used()
    taken = await take(engine, sandbox)
    gate = engine.machine.gate("thaw")
    restoring = work(relations.restore(engine.registry, sandbox, taken, engine.caller))
    await asyncio.sleep(0.01)
    closing = work(engine.registry.close_sandbox(sandbox.id))
    await asyncio.sleep(0.01)
    gate.set()
    with pytest.raises(SandboxClosed):
        await restoring
    await closing
    assert body.closed
    assert engine.machine.bodies[1].closed


# Merge


async def pair(engine: Engine) -> tuple[Sandbox, ScriptedBody, Sandbox, ScriptedBody]:
    parent, parent_body = await engine.used()
    winner = (await engine.fork(parent)).sandboxes[0]
    return parent, parent_body, winner, engine.machine.bodies[-1]


async def test_a_merge_puts_the_winner_in_the_parents_place(engine: Engine) -> None:
    parent, parent_body, winner, winner_body = await pair(engine)
    for _ in range(3):
        await run(winner, winner_body)
    await engine.merge(parent, winner)
    assert await run(parent, winner_body) == 5
    await until(lambda: parent_body.closed)
    with pytest.raises(SandboxClosed, match=f"was merged: its state goes on as sandbox {parent.id}"):
        engine.registry.find(winner.id)
    await engine.registry.close_sandbox(winner.id)
    assert not winner_body.closed
    with pytest.raises(SandboxClosed, match="was merged"):
        Call(winner)


async def test_a_merge_waits_for_cells_of_both_and_cells_behind_it_run_in_the_new_state(engine: Engine) -> None:
    parent, parent_body, winner, winner_body = await pair(engine)
    running, queued = Call(parent, b"running"), Call(parent, b"queued")
    of_winner, queued_of_winner = Call(winner, b"of winner"), Call(winner, b"queued of winner")
    merging = engine.merge(parent, winner)
    await asyncio.sleep(0)
    behind = Call(parent, b"behind")
    lost = Call(winner, b"too late")
    await finish(running, parent_body)
    await finish(queued, parent_body)
    assert parent_body.silent()
    assert not merging.done()
    await finish(of_winner, winner_body)
    await finish(queued_of_winner, winner_body)
    await merging
    frame = await winner_body.next_frame()
    assert frame.blob == b"behind"
    winner_body.done(int(str(frame.header["id"])))
    await behind.outcome()
    with pytest.raises(ExecutionCancelled, match="was merged"):
        await lost.outcome()


async def test_merges_that_cross_do_not_wait_for_each_other(engine: Engine) -> None:
    parent, parent_body, winner, winner_body = await pair(engine)
    running, of_winner = Call(parent), Call(winner)
    one, other = engine.merge(parent, winner), engine.merge(winner, parent)
    await asyncio.sleep(0)
    await finish(running, parent_body)
    await finish(of_winner, winner_body)
    await one
    with pytest.raises(SandboxClosed, match="was merged"):
        await other
    await run(parent, winner_body)


async def test_a_winner_wins_once(engine: Engine) -> None:
    parent, _, winner, winner_body = await pair(engine)
    of_winner = Call(winner)
    first, second = engine.merge(parent, winner), engine.merge(parent, winner)
    await asyncio.sleep(0)
    await finish(of_winner, winner_body)
    await first
    with pytest.raises(SandboxClosed, match="was merged"):
        await second
    await run(parent, winner_body)


async def test_one_winner_after_another(engine: Engine) -> None:
    parent, parent_body = await engine.used()
    one, other = (await engine.fork(parent, 2)).sandboxes
    _, one_body, other_body = engine.machine.bodies
    await engine.merge(parent, one)
    await engine.merge(parent, other)
    await until(lambda: parent_body.closed and one_body.closed)
    await run(parent, other_body)


async def test_nobody_merges_with_itself(engine: Engine) -> None:
    parent, body = await engine.used()
    with pytest.raises(InvalidArgument, match="itself"):
        engine.merge(parent, parent)
    await run(parent, body)


async def test_a_caller_that_leaves_before_a_merge_gets_none_and_both_go_on(engine: Engine) -> None:
    parent, parent_body, winner, winner_body = await pair(engine)
    of_winner = Call(winner)
    caller = Caller()
    merging = engine.merge(parent, winner, caller)
    await asyncio.sleep(0)
    waiting = Call(parent)
    caller.leave()
    with pytest.raises(ExecutionCancelled):
        await merging
    await finish(waiting, parent_body)
    await finish(of_winner, winner_body)
    await run(winner, winner_body)


@pytest.mark.parametrize("closed", ["parent", "winner"])
async def test_closing_either_side_ends_a_merge_that_waits(engine: Engine, closed: str) -> None:
    parent, parent_body, winner, winner_body = await pair(engine)
    busy, busy_body, idle, idle_body = (
        (winner, winner_body, parent, parent_body) if closed == "parent" else (parent, parent_body, winner, winner_body)
    )
    running = Call(busy)
    merging = engine.merge(parent, winner)
    await asyncio.sleep(0.01)
    await asyncio.wait_for(engine.registry.close_sandbox(idle.id), 2)
    assert idle_body.closed
    with pytest.raises(SandboxClosed):
        await merging
    await finish(running, busy_body)
    await run(busy, busy_body)


async def test_a_winner_whose_repl_died_is_revived_by_the_parents_next_cell(engine: Engine) -> None:
    parent, _, winner, winner_body = await pair(engine)
    winner_body.die(ScriptedDeath(1, None))
    await engine.merge(parent, winner)
    call = Call(parent)
    await until(lambda: winner_body.revivals == 1)
    frame = await winner_body.next_frame()
    winner_body.done(int(str(frame.header["id"])))
    assert (await call.outcome()).restarted


async def test_a_body_that_was_replaced_is_closed_when_its_file_calls_are_over(engine: Engine) -> None:
    parent, parent_body, winner, _ = await pair(engine)
    call = parent.file_call()
    await engine.merge(parent, winner)
    await asyncio.sleep(0.01)
    assert not parent_body.closed
    call.set_result(None)
    await until(lambda: parent_body.closed)


# Diff


def named(**values: str | None) -> bytes:
    """What a guest says of its names: each an int, with a short value that is also its fingerprint."""
    rows = [[name, "int", value or "?", 28, None if value is None else value * 32] for name, value in values.items()]
    return encode(guest.NAMES, {"omitted": 0}, json.dumps(rows).encode())


async def ask_names(body: ScriptedBody, **values: str | None) -> None:
    assert (await body.next_frame()).kind == guest.ASK_NAMES
    body.send(named(**values))


def diff(engine: Engine, one: Sandbox, other: Sandbox) -> Work:
    return work(relations.diff(engine.registry, one, other, None, engine.caller))


async def test_a_diff_tells_names_that_were_added_removed_and_changed(engine: Engine) -> None:
    parent, parent_body, child, child_body = await pair(engine)
    waiting = diff(engine, parent, child)
    await ask_names(parent_body, same="1", gone="2", other="3", unknown=None, dark=None)
    await ask_names(child_body, same="1", new="4", other="5", unknown="6", dark=None)
    found = await waiting
    assert [(change.name, change.change, change.approximate) for change in found.names] == [
        ("gone", "removed", False),
        ("new", "added", False),
        ("other", "changed", False),
        ("unknown", "changed", True),
    ]
    assert str(found).splitlines() == [
        "names: 1 added, 2 changed, 1 removed",
        "  - gone: int 2",
        "  + new: int 4",
        "  ~ other: int 3 -> int 5",
        "  ~ unknown: int ? -> int 6 (approximate)",
        "names that could not be compared: dark",
    ]
    await run(parent, parent_body)
    await run(child, child_body)


async def test_a_sandbox_does_not_differ_from_itself_and_a_dead_one_has_no_names(engine: Engine) -> None:
    parent, parent_body, child, child_body = await pair(engine)
    assert (await diff(engine, parent, parent)).is_empty
    child_body.die(ScriptedDeath(1, None))
    waiting = diff(engine, parent, child)
    await ask_names(parent_body, a="1")
    assert [change.change for change in (await waiting).names] == ["removed"]


async def test_a_guest_that_tells_no_names_is_interrupted_but_never_killed(tmp_path: Path) -> None:
    settings = replace(SETTINGS, names_interrupt_seconds=0.01, names_at_most_seconds=0.2)
    engine = Engine(tmp_path, settings)
    parent, parent_body, child, child_body = await pair(engine)
    waiting = diff(engine, parent, child)
    await ask_names(child_body)
    with pytest.raises(SandboxLost, match="did not tell its names"):
        await waiting
    assert parent_body.signals == [2, 2, guest.HARD_INTERRUPT_SIGNAL]
    with pytest.raises(ForkFailed, match="busy"):
        await engine.fork(parent)
    # It answers after all, and everything is as it was.
    await ask_names(parent_body)
    await run(parent, parent_body)
    await engine.fork(parent)
    await engine.registry.close()


async def test_a_diff_ends_when_one_side_is_closed(engine: Engine) -> None:
    parent, parent_body, child, _ = await pair(engine)
    waiting = diff(engine, parent, child)
    await parent_body.next_frame()
    closing = work(engine.registry.close_sandbox(child.id))
    parent_body.send(named())
    with pytest.raises(SandboxClosed, match="was closed"):
        await waiting
    await closing
    await run(parent, parent_body)


async def test_an_answer_of_the_wrong_kind_ends_the_repl(engine: Engine) -> None:
    parent, parent_body, child, child_body = await pair(engine)
    waiting = diff(engine, parent, child)
    await ask_names(child_body)
    await parent_body.next_frame()
    parent_body.send(encode(guest.CONFIGURED, {"error": None}))
    with pytest.raises(SandboxLost):
        await waiting
    assert parent_body.signals == [9]


async def test_a_diff_that_fails_at_the_files_leaves_both_unharmed(engine: Engine) -> None:
    parent, parent_body, child, child_body = await pair(engine)
    engine.machine.failing = "diff"
    waiting = diff(engine, parent, child)
    await ask_names(parent_body)
    await ask_names(child_body)
    with pytest.raises(ForkFailed):
        await waiting
    await run(parent, parent_body)
    await run(child, child_body)
