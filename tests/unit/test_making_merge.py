"""Merge in the engine, with a scripted machine: order, who wins, who may leave when."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ramet.engine.cells.turns import Caller
from ramet.errors import ExecutionCancelled, InvalidArgument, SandboxClosed
from tests.unit.scripted import ScriptedDeath
from tests.unit.scripted_engine import SETTINGS, Call, Engine, finish, pair, run
from tests.waiting import settle, until


async def test_a_merge_puts_the_winner_in_the_parents_place(engine: Engine) -> None:
    parent, parent_body, winner, winner_body = await pair(engine)
    for _ in range(3):
        await run(winner, winner_body)
    await engine.merge(parent, winner)
    assert await run(parent, winner_body) == 5
    await until(lambda: parent_body.closed)
    assert engine.registry.all_of(None) == [parent]
    with pytest.raises(SandboxClosed, match=f"was merged; its state continues in sandbox {parent.id}"):
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
    await until(lambda: (parent.queue.waiting, winner.queue.waiting) == (2, 2))
    behind = Call(parent, b"behind")
    lost = Call(winner, b"too late")
    await finish(running, parent_body)
    await finish(queued, parent_body)
    await settle()
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
    await until(lambda: (parent.queue.waiting, winner.queue.waiting) == (2, 2))
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
    await until(lambda: winner.queue.waiting == 2)
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
    assert await run(parent, other_body) == 2


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
    await until(lambda: winner.queue.waiting == 1)
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
    await until(lambda: busy.queue.waiting == 1)
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
    # Not closed because time is over. Sandboxes have their settings from the workshop.
    engine.registry.workshop.settings = replace(SETTINGS, retire_seconds=60.0)
    parent, parent_body, winner, _ = await pair(engine)
    call = parent.file_call()
    await engine.merge(parent, winner)
    await settle()
    assert not parent_body.closed
    call.set_result(None)
    await until(lambda: parent_body.closed)
