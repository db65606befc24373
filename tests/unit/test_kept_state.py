"""Persistent sandboxes: what they were when they ended is kept, for others to go on from."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from ramet.errors import ExecutionCancelled, ForkFailed, InvalidArgument, LimitReached, SandboxClosed
from ramet.protocol import calls
from ramet.protocol.values.specs import Lifetime
from tests.unit.scripted import ScriptedBody, ScriptedDeath, ScriptedFrozen
from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import SETTINGS, SPEC, Call, Engine, run, work
from tests.waiting import until

Connect = Callable[[], Client]
KEPT = replace(SPEC, owner="me", persistent=True)


async def resume(client: Client, space: str, **more: object) -> str:
    asked = {"lifetime": None, "persistent": False, **more}
    return str((await client.ask(calls.RESUME, space=space, **asked)).header["id"])


async def test_a_persistent_sandbox_is_kept_when_it_is_closed_and_resumed_any_number_of_times(
    engine: Engine, connect: Connect
) -> None:
    sandbox, body = await engine.used(replace(KEPT, history=False))
    client = connect()
    await client.ask(calls.CLOSE, sandbox=sandbox.id)
    assert body.closed
    assert engine.registry.kept.rows(None) == [{"id": sandbox.id, "owner": "me"}]
    for _ in range(2):
        resumed = await resume(client, sandbox.id, owner="me")
        found = engine.registry.find(resumed)
        assert (found.owner, found.identity.parent, found.spec.persistent) == ("me", sandbox.id, False)
        assert await run(found, engine.machine.bodies[-1]) == 2  # cells are numbered on
    await client.ask(calls.DISCARD, space=sandbox.id)
    assert engine.machine.snapshots[0].closed
    await client.ask(calls.DISCARD, space=sandbox.id)
    with pytest.raises(SandboxClosed, match="discarded"):
        await resume(client, sandbox.id)


@pytest.mark.parametrize(("lifetime", "cause"), [(Lifetime(0.02), "timeout"), (Lifetime(None, 0.02), "idle")])
async def test_a_persistent_sandbox_is_kept_when_its_time_is_over(
    engine: Engine, connect: Connect, lifetime: Lifetime, cause: str
) -> None:
    sandbox, body = await engine.used(replace(KEPT, lifetime=lifetime))
    await until(lambda: body.closed)
    with pytest.raises(SandboxClosed) as caught:
        engine.registry.find(sandbox.id)
    assert caught.value.details["cause"] == cause
    resumed = engine.registry.find(await resume(connect(), sandbox.id, lifetime={"timeout_seconds": 1000}))
    assert resumed.spec.lifetime == Lifetime(1000)


async def test_a_cell_that_runs_at_the_end_is_interrupted_and_then_the_sandbox_is_kept(
    engine: Engine, connect: Connect
) -> None:
    sandbox, body = await engine.used(KEPT)
    running, waiting = Call(sandbox), Call(sandbox)
    await body.next_frame()
    client = connect()
    client.send(calls.CLOSE, sandbox=sandbox.id)
    for call in (running, waiting):
        with pytest.raises(ExecutionCancelled, match="was closed"):
            await call.outcome()
    assert body.signals[:1] == [signal.SIGINT]
    assert engine.machine.snapshots == []
    resuming = connect()
    resuming.send(calls.RESUME, space=sandbox.id, lifetime=None, persistent=False)
    body.done(2, exit_code=130, interrupted=True)
    await client.answer()
    await resuming.answer()  # who comes early waits for it
    assert len(engine.machine.snapshots) == 1


async def test_a_sandbox_whose_repl_is_lost_is_kept_with_a_fresh_one(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used(KEPT)
    body.die(ScriptedDeath(1, None))
    await until(lambda: sandbox.state == "lost")
    client = connect()
    client.send(calls.CLOSE, sandbox=sandbox.id)
    await until(lambda: body.revivals == 1)
    await body.configured()
    await client.answer()
    resumed = engine.registry.find(await resume(client, sandbox.id))
    call = Call(resumed)
    await engine.machine.bodies[-1].next_frame()
    engine.machine.bodies[-1].done(2)
    assert (await call.outcome()).restarted


async def test_a_caller_is_told_once_that_its_cell_was_cut_off_however_the_end_goes_on(
    engine: Engine, connect: Connect
) -> None:
    engine.registry.settings = replace(SETTINGS, keep_seconds=0.0)
    sandbox, body = await engine.used(KEPT)
    caller, client = connect(), connect()
    caller.run(sandbox.id)
    await body.next_frame()
    await client.ask(calls.CLOSE, sandbox=sandbox.id)
    assert body.closed
    with pytest.raises(ExecutionCancelled):
        await caller.answer()
    # The next answer on that connection is to the next question.
    assert (await caller.ask(calls.SANDBOXES)).header["sandboxes"] == []


async def test_what_could_not_be_kept_is_told(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used(KEPT)
    engine.machine.failing = "freeze"
    client = connect()
    await client.ask(calls.CLOSE, sandbox=sandbox.id)
    assert body.closed
    assert len(engine.registry.kept) == 0
    with pytest.raises(SandboxClosed, match="could not be kept: scripted to fail"):
        await resume(client, sandbox.id)


async def test_a_freeze_that_fails_is_tried_again(
    engine: Engine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, _ = await engine.used(KEPT)
    freeze = engine.machine.freeze
    failures = [ForkFailed("scripted to fail once")]

    async def fail_once(body: ScriptedBody, keep_pid: bool, stay_stopped: bool) -> ScriptedFrozen:
        if failures:
            raise failures.pop()
        return await freeze(body, keep_pid, stay_stopped)

    monkeypatch.setattr(engine.machine, "freeze", fail_once)
    client = connect()
    await client.ask(calls.CLOSE, sandbox=sandbox.id)
    assert failures == []
    assert engine.registry.find(await resume(client, sandbox.id)).identity.parent == sandbox.id


async def test_a_space_that_is_discarded_while_it_is_made_is_not_kept(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used(KEPT)
    gate = engine.machine.gate("freeze")
    closing, client = connect(), connect()
    closing.send(calls.CLOSE, sandbox=sandbox.id)
    await until(lambda: len(engine.registry.kept) == 1)
    await client.ask(calls.DISCARD, space=sandbox.id)
    gate.set()
    await closing.answer()
    assert body.closed
    assert engine.machine.snapshots[0].closed


async def test_the_engine_closes_while_a_sandbox_is_being_kept(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used(KEPT)
    gate = engine.machine.gate("freeze")
    connect().send(calls.CLOSE, sandbox=sandbox.id)
    await until(lambda: len(engine.registry.kept) == 1 and bool(engine.machine.kept_pids))
    closing = work(engine.registry.close())
    await until(lambda: sandbox.state == "closed")
    gate.set()
    await closing
    assert body.closed


async def test_only_what_ended_and_was_persistent_can_be_resumed(engine: Engine, connect: Connect) -> None:
    plain, _ = await engine.used()
    lasting, _ = await engine.used(KEPT)
    client = connect()
    with pytest.raises(InvalidArgument, match="must be the id of a persistent sandbox that has ended"):
        await resume(client, lasting.id)
    await client.ask(calls.CLOSE, sandbox=plain.id)
    with pytest.raises(SandboxClosed, match="not persistent"):
        await resume(client, plain.id)
    with pytest.raises(SandboxClosed, match="no space"):
        await resume(client, "sbx_never")


async def test_children_and_sandboxes_nobody_knows_of_are_not_kept(engine: Engine) -> None:
    parent, _ = await engine.used(KEPT)
    child = (await engine.fork(parent)).sandboxes[0]
    await engine.registry.close_sandbox(child.id)
    await engine.registry.forget(parent.id)
    assert len(engine.registry.kept) == 0


async def test_a_merged_sandbox_is_kept_as_its_successor(engine: Engine) -> None:
    parent, _ = await engine.used(KEPT)
    winner, _ = await engine.used(KEPT)
    await engine.merge(parent, winner)
    assert len(engine.registry.kept) == 0
    await engine.registry.close_sandbox(parent.id)
    assert [row["id"] for row in engine.registry.kept.rows("me")] == [parent.id]


async def test_there_is_no_persistent_sandbox_without_room_for_its_space(engine: Engine) -> None:
    engine.registry.kept._settings = replace(SETTINGS, spaces_of_an_owner=2, spaces=3)
    ended, _ = await engine.used(KEPT)
    await engine.registry.close_sandbox(ended.id)
    await engine.used(KEPT)
    with pytest.raises(LimitReached, match="there are 2 already"):
        await engine.create(KEPT)
    await engine.used(replace(KEPT, owner="you"))
    with pytest.raises(LimitReached, match="the engine has reached its limit"):
        await engine.create(replace(KEPT, owner="you"))
    await engine.used()
    await engine.registry.kept.discard(ended.id, "me")
    await engine.used(KEPT)
