"""When states are kept and given up in the engine, with a scripted machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.history import descriptions
from ramet.engine.history.fork_at import fork_at
from ramet.engine.history.past import TemplateState
from ramet.engine.history.undo import rewind, undo
from ramet.engine.making.thaw import restore, thaw
from ramet.errors import ForkFailed, PointUnknown, SandboxClosed
from ramet.protocol import calls, guest
from ramet.protocol.frames import encode
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import ThawSpec
from tests.unit.scripted import ScriptedBody, ScriptedDeath
from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import SETTINGS, SPEC, Call, Engine, finish, run, take, work
from tests.waiting import until

ALL = replace(SPEC, history=100)
QUICK_POINTS = replace(
    SETTINGS,
    automatic_points=True,
    point_idle_seconds=0.001,
    point_outside_seconds=0.001,
    points_before_cells=0,
    point_share=0.0,
)


@pytest.fixture
async def idle_engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """One that keeps the state of an idle sandbox, and of no other."""
    engine = Engine(tmp_path, QUICK_POINTS)
    yield engine
    await engine.registry.close()
    assert engine.machine.left_open == []
    assert all(frozen.closed for frozen in engine.machine.snapshots)


@pytest.fixture(autouse=True)
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of a scripted body is a folder of the host, whose file system is full of other things."""
    monkeypatch.setattr("ramet.engine.history.point_taker._file_bytes", lambda _: 0)


async def kept(engine: Engine, sandbox: Sandbox) -> None:
    await until(lambda: sandbox.past.last is not None and sandbox.past.last.exact)


async def test_the_state_is_kept_when_the_sandbox_is_idle_and_it_still_counts_as_idle(idle_engine: Engine) -> None:
    engine = idle_engine
    gate = engine.machine.gate("freeze")
    sandbox, _ = await engine.used()
    used = sandbox.clock._used
    await until(lambda: "freeze" in engine.machine.reached)
    assert sandbox.state == "idle"
    gate.set()
    await kept(engine, sandbox)
    assert engine.machine.snapshots[0].gives_way
    assert sandbox.clock._used == used
    assert descriptions.history(sandbox)["taking"] == "on"


async def test_a_cell_that_comes_while_a_state_is_kept_runs_after_it(idle_engine: Engine) -> None:
    engine = idle_engine
    gate = engine.machine.gate("freeze")
    sandbox, body = await engine.used()
    await until(lambda: "freeze" in engine.machine.reached)
    call = Call(sandbox)
    assert sandbox.queue.waiting == 1
    gate.set()
    assert await finish(call, body) == 2
    assert [step.exact for step in sandbox.past.steps[:2]] == [True, True]


async def test_a_freeze_that_fails_shows_in_the_history_and_nowhere_else(idle_engine: Engine) -> None:
    engine = idle_engine
    engine.machine.failing = "freeze"
    sandbox, body = await engine.used()
    await until(lambda: sandbox.past.steps[-1].unkept.startswith("it could not be kept"))
    told = descriptions.history(sandbox)
    assert (told["taking"], told["note"]) == ("suspended", "no points are taken for now: scripted to fail at freeze")
    assert await run(sandbox, body) == 2
    assert engine.machine.reached == ["freeze"]  # not again at once


async def test_a_sandbox_that_closes_while_its_state_is_kept_leaves_nothing(idle_engine: Engine) -> None:
    engine = idle_engine
    gate = engine.machine.gate("freeze")
    sandbox, body = await engine.used()
    await until(lambda: "freeze" in engine.machine.reached)
    closing = work(engine.registry.close_sandbox(sandbox.id))
    await until(lambda: sandbox.state == "closed")
    assert not body.closed
    gate.set()
    await closing
    assert body.closed
    assert engine.machine.snapshots[0].closed


async def test_sandboxes_not_used_for_longest_give_their_states_up(tmp_path: Path) -> None:
    engine = Engine(tmp_path, replace(QUICK_POINTS, points_automatic=2))
    sandboxes = []
    for _ in range(4):
        sandbox, _ = await engine.used()
        sandboxes.append(sandbox)
        await until(lambda: sandboxes[-1].past.steps[-1].state is not None)
    await until(lambda: sum(not frozen.closed for frozen in engine.machine.snapshots) == 2)
    assert [sandbox.past.steps[-1].state is not None for sandbox in sandboxes] == [False, False, True, True]
    assert "more recently" in sandboxes[0].past.steps[-1].unkept
    assert engine.registry.history.facts(None)["points"] == 2
    await engine.registry.close()


async def test_an_owner_with_many_states_does_not_cost_others_theirs(tmp_path: Path) -> None:
    engine = Engine(tmp_path, replace(QUICK_POINTS, points_automatic=3))
    modest, _ = await engine.used(replace(SPEC, owner="modest"))  # not used for longest
    await kept(engine, modest)
    greedy = []
    for _ in range(4):
        sandbox, _ = await engine.used(replace(SPEC, owner="greedy"))
        greedy.append(sandbox)
        await until(lambda: greedy[-1].past.steps[-1].state is not None)
    await until(lambda: sum(not frozen.closed for frozen in engine.machine.snapshots) == 3)
    assert modest.past.steps[-1].state is not None
    assert [sandbox.past.steps[-1].state is not None for sandbox in greedy] == [False, False, True, True]
    await engine.registry.close()


async def test_states_are_given_up_when_they_take_more_memory_than_all_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nine_mebibytes(pids: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(pids, 9 * 2**20)

    monkeypatch.setattr("ramet.engine.history.keeper.own_memory", nine_mebibytes)
    engine = Engine(tmp_path, replace(QUICK_POINTS, history_bytes=25 * 2**20))
    idle, _ = await engine.used()
    await kept(engine, idle)
    busy, body = await engine.used(ALL)
    for _ in range(3):
        await run(busy, body)
    newest = [True, False, False, True, True]
    await until(lambda: [step.state is not None for step in busy.past.steps] == newest)
    facts = engine.registry.history.facts(None)
    assert facts["points"] == 2
    assert 20 * 2**20 <= facts["memory_bytes"] <= 25 * 2**20
    assert idle.past.steps[-1].state is None
    await engine.registry.close()


async def test_snapshots_that_only_a_past_still_holds_count_like_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nine_mebibytes(pids: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(pids, 9 * 2**20)

    monkeypatch.setattr("ramet.engine.history.keeper.own_memory", nine_mebibytes)
    engine = Engine(tmp_path, replace(SETTINGS, history_bytes=25 * 2**20, snapshots=10))
    sandbox, _ = await engine.used()
    for _ in range(4):
        snapshot = await take(engine, sandbox)
        await restore(engine.registry, sandbox, snapshot, engine.caller)
        await engine.registry.snapshots.drop(snapshot.id)
    await until(lambda: [frozen.closed for frozen in engine.machine.snapshots] == [True, True, False, False])
    snapshot = await take(engine, sandbox)
    thawed = await thaw(engine.registry, ThawSpec(snapshot.id, None), engine.caller)
    await engine.registry.snapshots.drop(snapshot.id)
    await until(lambda: [frozen.closed for frozen in engine.machine.snapshots[2:]] == [True, False, False])
    assert thawed.past.steps[0].state is snapshot
    await engine.registry.close()


async def test_each_state_is_kept_before_the_next_cell_of_one_that_asked(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    for number in range(2, 6):
        assert await run(sandbox, body) == number
    assert [step.exact for step in sandbox.past.steps] == [True] * 5 + [False]
    assert engine.machine.reached == ["freeze"] * 4


async def test_the_second_to_fourth_cell_of_a_sandbox_wait_for_the_state_before_them_and_no_later_one(
    tmp_path: Path,
) -> None:
    engine = Engine(tmp_path, replace(SETTINGS, automatic_points=True, point_idle_seconds=60.0, point_share=0.0))
    sandbox, body = await engine.used()
    for number in range(2, 8):
        assert await run(sandbox, body) == number
    assert engine.machine.reached == ["freeze"] * 3
    assert [step.state is not None for step in sandbox.past.steps] == [True] * 4 + [False] * 4
    await engine.registry.close()


async def test_undo_thaws_the_state_before_the_cell_and_forgets_the_later_ones(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    await run(sandbox, body)
    await run(sandbox, body)
    back = await undo(engine.registry, sandbox, 2, engine.caller)
    assert (back.step.id, back.cell_ids) == ("p1", (2, 3))
    await until(lambda: body.closed and engine.machine.snapshots[1].closed)
    assert not engine.machine.snapshots[0].closed
    assert await run(sandbox, engine.machine.bodies[-1]) == 4


async def test_undo_of_everything_makes_the_sandbox_anew_from_its_template(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    assert isinstance(sandbox.past.steps[0].state, TemplateState)
    back = await undo(engine.registry, sandbox, 1, engine.caller)
    assert back.step.kind == "start"
    assert "thaw" not in engine.machine.reached
    assert sandbox.repl.fresh
    await until(lambda: body.closed)
    assert await run(sandbox, engine.machine.bodies[-1]) == 2


async def test_an_undo_that_fails_changes_nothing(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    await run(sandbox, body)
    engine.machine.failing = "thaw"
    with pytest.raises(ForkFailed):
        await undo(engine.registry, sandbox, 1, engine.caller)
    assert await run(sandbox, body) == 3
    assert len(sandbox.past.steps) == 4


async def test_a_state_whose_process_the_kernel_has_ended_is_no_point_any_more(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    await run(sandbox, body)
    engine.machine.snapshots[0].killed = True
    engine.machine.failing = "thaw"
    with pytest.raises(PointUnknown, match="p1 is not kept any more: its frozen process was killed"):
        await rewind(engine.registry, sandbox, "p1", engine.caller)
    with pytest.raises(PointUnknown, match="killed"):
        await fork_at(engine.registry, sandbox, "p1", 1, False, engine.caller, Allowance())
    assert await run(sandbox, body) == 3


async def test_the_history_does_not_show_a_state_as_kept_whose_process_the_kernel_has_ended(
    engine: Engine, connect: Callable[[], Client]
) -> None:
    sandbox, body = await engine.used(ALL)
    await run(sandbox, body)
    await run(sandbox, body)
    engine.machine.snapshots[0].killed = True
    answer = await connect().ask(calls.HISTORY, sandbox=sandbox.id)
    points: Any = answer.header["points"]
    assert [point["kept"] for point in points][:3] == [True, False, True]
    assert "killed" in points[1]["note"]


async def test_a_sandbox_that_closes_during_an_undo_stays_closed(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    await run(sandbox, body)
    gate = engine.machine.gate("thaw")
    undoing = work(undo(engine.registry, sandbox, 1, engine.caller))
    await until(lambda: "thaw" in engine.machine.reached)
    closing = work(engine.registry.close_sandbox(sandbox.id))
    await until(lambda: sandbox.state == "closed")
    gate.set()
    with pytest.raises(SandboxClosed):
        await undoing
    await closing
    assert body.closed
    assert engine.machine.bodies[-1].closed


async def dead(engine: Engine, sandbox: Sandbox, body: ScriptedBody) -> Call:
    """A cell in which the REPL has died."""
    call = Call(sandbox)
    await body.next_frame()
    body.die(ScriptedDeath(None, 11))
    return call


async def test_the_outcome_of_a_cell_that_died_comes_after_the_restore(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    gate = engine.machine.gate("thaw")
    call = await dead(engine, sandbox, body)
    await until(lambda: "thaw" in engine.machine.reached)
    assert not call.done
    gate.set()
    outcome = await call.outcome()
    assert (outcome.state, outcome.exit_code, outcome.restarted) == ("restored", 139, False)
    assert outcome.error is not None
    assert outcome.error.message in outcome.stderr.decode()
    assert await run(sandbox, engine.machine.bodies[-1]) == 3
    assert body.revivals == 0


async def test_a_restore_that_fails_is_told_as_a_loss_and_the_next_cell_is_fresh(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    engine.machine.failing = "thaw"
    call = await dead(engine, sandbox, body)
    outcome = await call.outcome()
    assert outcome.state == "lost"
    assert b"fresh Python" in outcome.stderr
    after = Call(sandbox)
    await until(lambda: body.revivals == 1)
    await body.configured()  # a fresh one, before its state is kept for the first time
    frame = await body.next_frame()
    body.done(int(str(frame.header["id"])))
    assert (await after.outcome()).restarted
    assert body.revivals == 1


async def test_a_sandbox_that_closes_during_the_restore_leaves_nothing(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    gate = engine.machine.gate("thaw")
    call = await dead(engine, sandbox, body)
    await until(lambda: "thaw" in engine.machine.reached)
    closing = work(engine.registry.close_sandbox(sandbox.id))
    await until(lambda: sandbox.state == "closed")
    gate.set()
    await closing
    assert call.done
    assert body.closed
    assert engine.machine.bodies[-1].closed


async def test_a_restored_repl_that_ends_again_at_once_is_not_restored_to_the_same_state(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    await run(sandbox, body)
    call = await dead(engine, sandbox, body)
    await until(lambda: len(engine.machine.bodies) == 2)
    engine.machine.bodies[1].die(ScriptedDeath(5, None))
    assert (await call.outcome()).state == "restored"
    assert "soon after it is woken" in sandbox.past.steps[2].unkept
    assert sandbox.past.last is sandbox.past.steps[1]
    assert await run(sandbox, engine.machine.bodies[2]) == 4


async def test_children_hold_the_states_of_their_parent(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    await run(sandbox, body)
    (child,) = (await engine.fork(sandbox)).sandboxes
    await engine.registry.close_sandbox(sandbox.id)
    assert not engine.machine.snapshots[0].closed
    assert (await undo(engine.registry, child, 1, engine.caller)).step.id == "p1"
    await engine.registry.close_sandbox(child.id)
    assert engine.machine.snapshots[0].closed


async def test_a_fork_waits_for_the_answer_that_a_point_has_given_up(tmp_path: Path) -> None:
    """Before Python 3.12, of a REPL whose thread holds the interpreter for a while."""
    engine = Engine(tmp_path, replace(QUICK_POINTS, point_loop_seconds=0.01))
    old = replace(SPEC.template, interpreter=replace(SPEC.template.interpreter, version="3.11.1"))
    sandbox, body = await engine.used(replace(SPEC, template=old))
    assert (await body.next_frame()).kind == guest.ASK_LOOPS
    await until(lambda: sandbox.past.steps[-1].unkept.startswith("it could not be kept"))
    forking = engine.fork(sandbox)
    for _ in range(20):
        await asyncio.sleep(0)  # it has its turn
    assert not forking.done()
    body.send(encode(guest.LOOPS, {"running": False}))
    assert len((await forking).sandboxes) == 1
    assert body.silent()
    await engine.registry.close()


async def test_a_fork_at_a_point_takes_no_turn(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    await run(sandbox, body)
    running = Call(sandbox)
    made = await fork_at(engine.registry, sandbox, "p1", 2, False, engine.caller, Allowance())
    assert [child.past.steps[-1].id for child in made.sandboxes] == ["p1", "p1"]
    assert not running.done
    assert await finish(running, body) == 3


async def test_a_state_that_a_file_call_has_changed_is_kept_anew(idle_engine: Engine) -> None:
    engine = idle_engine
    sandbox, _ = await engine.used()
    await kept(engine, sandbox)
    sandbox.touched()
    assert not sandbox.past.steps[-1].exact
    await kept(engine, sandbox)
    assert len(engine.machine.snapshots) == 2
    await until(lambda: engine.machine.snapshots[0].closed)


async def test_what_was_written_from_outside_is_kept_before_the_next_cell_although_no_point_may_cost_time(
    idle_engine: Engine,
) -> None:
    engine = idle_engine
    sandbox, body = await engine.used()
    await kept(engine, sandbox)
    sandbox.touched()
    call = await dead(engine, sandbox, body)  # at once: the sandbox was not idle
    outcome = await call.outcome()
    assert outcome.state == "restored"
    assert len(engine.machine.snapshots) == 2
    assert b"written from outside" not in outcome.stderr


async def test_a_recovery_that_takes_back_what_was_written_from_outside_says_so(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    await run(sandbox, body)
    await run(sandbox, body)
    sandbox.touched()
    body.die(ScriptedDeath(None, 11))
    await until(lambda: not sandbox.repl.alive)
    call = Call(sandbox)
    await until(lambda: len(engine.machine.bodies) == 2)
    await finish(call, engine.machine.bodies[1])
    stderr = (await call.outcome()).stderr
    assert b"work of cell 3 is missing" in stderr
    assert b"Files and values written from outside since then are gone" in stderr
    again = await dead(engine, sandbox, engine.machine.bodies[1])
    assert b"written from outside" not in (await again.outcome()).stderr


async def test_a_state_after_which_threads_went_on_is_kept_anew_before_the_next_cell(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    call = Call(sandbox)
    await finish(call, body)
    await undo(engine.registry, sandbox, 1, engine.caller)
    body = engine.machine.bodies[-1]
    await run(sandbox, body)  # nothing worked since
    assert len(engine.machine.snapshots) == 1
    await undo(engine.registry, sandbox, 1, engine.caller)
    body = engine.machine.bodies[-1]
    body.worked_seconds += 0.1
    await run(sandbox, body)
    assert len(engine.machine.snapshots) == 2
    assert sandbox.past.before(1).state is not None
    await until(lambda: engine.machine.snapshots[0].closed)


async def test_a_file_written_while_the_state_is_frozen_may_not_be_in_it(idle_engine: Engine) -> None:
    engine = idle_engine
    gate = engine.machine.gate("freeze")
    sandbox, _ = await engine.used()
    await until(lambda: "freeze" in engine.machine.reached)
    sandbox.touched()
    gate.set()
    await until(lambda: len(engine.machine.snapshots) == 2)  # it is kept once more
    await kept(engine, sandbox)
    assert sandbox.past.last is not None
    assert sandbox.past.last.exact


async def test_a_file_written_while_a_cell_waits_for_the_state_before_it_may_not_be_in_that(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    gate = engine.machine.gate("freeze")
    call = Call(sandbox)
    await until(lambda: "freeze" in engine.machine.reached)
    sandbox.touched()
    gate.set()
    assert await finish(call, body) == 2
    assert not sandbox.past.steps[1].exact
    with pytest.raises(PointUnknown, match="written from outside"):
        await undo(engine.registry, sandbox, 1, engine.caller)


async def test_a_file_written_while_a_cell_runs_is_told_as_gone_when_that_dies(engine: Engine) -> None:
    sandbox, body = await engine.used(ALL)
    call = Call(sandbox)
    await body.next_frame()
    sandbox.touched()
    body.die(ScriptedDeath(None, 11))
    assert b"written from outside" in (await call.outcome()).stderr
    again = await dead(engine, sandbox, engine.machine.bodies[-1])
    assert b"written from outside" not in (await again.outcome()).stderr
