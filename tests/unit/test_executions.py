"""Executions: cells with an id go on without their caller, and are fetched, followed and cancelled by others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.engine.output.executions import Executions, Shelf
from ramet.engine.settings import Settings
from ramet.errors import ExecutionCancelled, ExecutionUnknown, InvalidArgument, LimitReached
from ramet.protocol import calls, guest
from ramet.protocol.frames import Frame, encode
from tests.unit.scripted import ScriptedDeath
from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import SETTINGS, Call, Engine
from tests.waiting import until

Connect = Callable[[], Client]


def name(number: int) -> str:
    return f"exe_{number:032x}"


async def fetched(client: Client, sandbox_id: str, execution: str, wait: bool = True) -> list[Frame]:
    client.send(calls.FETCH, sandbox=sandbox_id, execution=execution, wait=wait)
    return await client.answers()


async def test_a_plain_cell_is_fetched_as_it_was_answered(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used()
    caller = connect()
    caller.run(sandbox.id, execution=name(1))
    await body.next_frame()
    os.write(body.guest_stdout, b"out")
    body.done(2, exit_code=7)
    answered = await caller.answers()
    assert (len(answered), answered[0].blob) == (1, b"out")
    for wait in (True, False):
        assert await fetched(connect(), sandbox.id, name(1), wait) == answered


async def test_a_streamed_cell_is_fetched_with_all_its_events(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used()
    caller = connect()
    caller.run(sandbox.id, stream=True, execution=name(1))
    await body.next_frame()
    os.write(body.guest_stdout, b"out")
    first = await caller.answer()
    mimes = [["text/plain", "s", 1]]
    body.send(encode(guest.RESULT, {"id": 2, "what": "value", "mimes": mimes, "display_id": None}, b"5"))
    body.done(2)
    streamed = [first, *(await caller.answers())]
    assert [frame.kind for frame in streamed] == [calls.OUTPUT, calls.RICH, calls.RESULT]
    assert await fetched(connect(), sandbox.id, name(1)) == streamed


async def test_the_state_of_one_that_is_not_over_is_told(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used()
    connect().run(sandbox.id, execution=name(1))
    await body.next_frame()
    connect().run(sandbox.id, execution=name(2))
    await until(lambda: sandbox.queue.waiting == 1)
    client = connect()
    for number, state in ((1, "running"), (2, "waiting")):
        answers = await fetched(client, sandbox.id, name(number), wait=False)
        assert dict(answers[0].header) == {"execution": name(number), "state": state}
    with pytest.raises(ExecutionUnknown):
        await fetched(client, sandbox.id, name(3))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_kept_cell_goes_on_without_its_caller(engine: Engine, connect: Connect, stream: bool) -> None:
    sandbox, body = await engine.used()
    running, waiting = connect(), connect()
    running.run(sandbox.id, stream, execution=name(1), on_disconnect="keep")
    await body.next_frame()
    waiting.run(sandbox.id, stream, execution=name(2), on_disconnect="keep")
    await until(lambda: sandbox.queue.waiting == 1)
    running.leave()
    waiting.leave()
    await connect().ask(calls.SANDBOXES)  # the engine has seen them leave
    for number in (1, 2):
        os.write(body.guest_stdout, b"out %d" % number)
        body.done(number + 1)
        if number == 1:
            assert (await body.next_frame()).header["id"] == 3
    for number in (1, 2):
        frames = await fetched(connect(), sandbox.id, name(number))
        assert b"".join(frame.blob for frame in frames) == b"out %d" % number
    assert body.signals == []


async def test_a_kept_stream_that_nobody_reads_does_not_hold_its_cell_up(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used()
    caller = connect()
    caller.run(sandbox.id, stream=True, execution=name(1), on_disconnect="keep")
    await body.next_frame()
    held = False
    for _ in range(1000):  # until the caller's socket and the engine's own buffer are full
        try:
            os.write(body.guest_stdout, b"x" * 65536)
        except BlockingIOError:
            if held:
                break
            held = True
        await caller_turn(engine, connect)
    assert held
    caller.leave()
    await until(lambda: _writes(body.guest_stdout, b"last"))
    body.done(2)
    frames = await fetched(connect(), sandbox.id, name(1))
    assert frames[-2].blob.endswith(b"last")


async def caller_turn(engine: Engine, connect: Connect) -> None:
    """Let the engine see what is in its pipes."""
    client = connect()
    await client.ask(calls.SANDBOXES)
    client.leave()


def _writes(descriptor: int, data: bytes) -> bool:
    try:
        return os.write(descriptor, data) > 0
    except BlockingIOError:
        return False


async def test_a_cell_that_is_not_kept_is_interrupted_and_its_end_recorded(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used()
    running, waiting = connect(), connect()
    running.run(sandbox.id, execution=name(1))
    await body.next_frame()
    waiting.run(sandbox.id, execution=name(2), on_disconnect="interrupt")
    await until(lambda: sandbox.queue.waiting == 1)
    running.leave()
    waiting.leave()
    await until(lambda: body.signals[:1] == [signal.SIGINT])
    body.done(2, exit_code=130, interrupted=True)
    frames = await fetched(connect(), sandbox.id, name(1))
    assert frames[-1].header["interrupted"] is True
    with pytest.raises(ExecutionCancelled, match="its caller went away"):
        await fetched(connect(), sandbox.id, name(2))


async def test_keep_needs_no_id(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used()
    caller = connect()
    caller.run(sandbox.id, on_disconnect="keep")
    await body.next_frame()
    caller.leave()
    await connect().ask(calls.SANDBOXES)
    assert body.signals == []
    body.done(2)
    await until(lambda: sandbox.state == "idle")


async def test_a_waiting_cell_is_cancelled_and_its_caller_told(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used()
    running, waiting, client = connect(), connect(), connect()
    running.run(sandbox.id, execution=name(1))
    await body.next_frame()
    waiting.run(sandbox.id, execution=name(2))
    await until(lambda: sandbox.queue.waiting == 1)
    answer = await client.ask(calls.CANCEL, sandbox=sandbox.id, execution=name(2))
    assert answer.header == {"cancelled": True}
    with pytest.raises(ExecutionCancelled):
        await waiting.answer()
    assert sandbox.queue.waiting == 0
    assert body.signals == []
    # A cell of the same connection comes next, as ever.
    waiting.run(sandbox.id)
    body.done(2)
    await running.answers()
    assert (await body.next_frame()).header["id"] == 3
    body.done(3)
    await waiting.answers()


async def test_a_running_cell_is_interrupted_and_one_that_is_over_is_not_cancelled(
    engine: Engine, connect: Connect
) -> None:
    sandbox, body = await engine.used()
    caller, client = connect(), connect()
    caller.run(sandbox.id, execution=name(1))
    await body.next_frame()
    asked = {"sandbox": sandbox.id, "execution": name(1)}
    assert (await client.ask(calls.CANCEL, **asked)).header == {"cancelled": True}
    assert body.signals[:1] == [signal.SIGINT]
    body.done(2, exit_code=130, interrupted=True)
    assert (await caller.answer()).header["interrupted"] is True
    assert (await client.ask(calls.CANCEL, **asked)).header == {"cancelled": False}
    with pytest.raises(ExecutionUnknown):
        await client.ask(calls.CANCEL, sandbox=sandbox.id, execution=name(2))


async def test_a_cell_that_waits_for_a_new_repl_is_cancelled_once(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used()
    body.die(ScriptedDeath(1, None))
    await until(lambda: sandbox.state == "lost")
    caller, client = connect(), connect()
    caller.run(sandbox.id, execution=name(1))
    client.send(calls.CANCEL, sandbox=sandbox.id, execution=name(1))
    assert (await client.answer()).header == {"cancelled": True}
    with pytest.raises(ExecutionCancelled):
        await caller.answer()
    await until(lambda: body.revivals == 1 and sandbox.state == "idle")
    assert body.silent()
    following = Call(sandbox)
    await body.next_frame()
    body.done(2)
    assert (await following.outcome()).restarted


async def test_several_follow_a_running_cell_from_its_beginning(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used()
    caller = connect()
    caller.run(sandbox.id, stream=True, execution=name(1), on_disconnect="keep")
    await body.next_frame()
    os.write(body.guest_stdout, b"one ")
    await caller.answer()
    followers = [connect(), connect(), connect()]
    for follower in followers:
        follower.send(calls.FETCH, sandbox=sandbox.id, execution=name(1), wait=True)
        assert (await follower.answer()).blob == b"one "
    followers.pop().leave()
    os.write(body.guest_stdout, b"two")
    for client in (caller, *followers):
        assert (await client.answer()).blob == b"two"
    body.done(2)
    ends = [await client.answer() for client in (caller, *followers)]
    assert ends[0].kind == calls.RESULT
    assert ends == [ends[0]] * 3
    # A follower's connection is good for more.
    assert (await followers[0].ask(calls.SANDBOXES)).kind == calls.ANSWER


async def test_one_that_follows_without_reading_delays_nobody_and_is_told_what_it_missed(tmp_path: Path) -> None:
    engine = Engine(tmp_path, replace(SETTINGS, streamed_bytes=200_000))
    sandbox, body = await engine.used()
    caller, slow = Client(engine), Client(engine)
    caller.run(sandbox.id, stream=True, execution=name(1))
    await body.next_frame()
    slow.send(calls.FETCH, sandbox=sandbox.id, execution=name(1), wait=True)
    total = 0
    for number in range(100):
        os.write(body.guest_stdout, (b"%04d" % number) * 8192)
        while total < (number + 1) * 32768:
            total += len((await caller.answer()).blob)
    body.done(2)
    await caller.answer()
    frames = await slow.answers()
    dropped = sum(int(str(frame.header.get("dropped_bytes", 0))) for frame in frames)
    received = b"".join(frame.blob for frame in frames)
    assert dropped > 0
    assert dropped + len(received) == total
    assert received.endswith(b"0099" * 8192)
    # Who comes later gets what the record holds, and is told first what it does not.
    late = Client(engine)
    frames = await fetched(late, sandbox.id, name(1))
    kept = sum(len(frame.blob) for frame in frames)
    assert frames[0].kind == calls.OUTPUT
    assert frames[0].header["dropped_bytes"] == total - kept
    assert 0 < kept <= 200_000
    for client in (caller, slow, late):
        client.leave()
    await engine.registry.close()


async def test_an_id_is_for_one_cell(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used()
    client = connect()
    for wrong in (name(1).upper(), "exe_", "exe_" + "0" * 31, "x" * 36, name(1) + "\n"):
        client.run(sandbox.id, execution=wrong)
        with pytest.raises(InvalidArgument, match="execution"):
            await client.answer()
    client.run(sandbox.id, execution=name(1), on_disconnect="perhaps")
    with pytest.raises(InvalidArgument, match="on_disconnect"):
        await client.answer()
    connect().run(sandbox.id, execution=name(1))
    await body.next_frame()
    client.run(sandbox.id, execution=name(1))
    with pytest.raises(InvalidArgument, match="already"):
        await client.answer()
    body.done(2)


async def test_a_cell_that_was_refused_leaves_no_record(engine: Engine, connect: Connect) -> None:
    sandbox, _ = await engine.used()
    for _ in range(1 + SETTINGS.waiting_cells):
        Call(sandbox)
    client = connect()
    client.run(sandbox.id, execution=name(1))
    with pytest.raises(LimitReached):
        await client.answer()
    with pytest.raises(ExecutionUnknown):
        await fetched(client, sandbox.id, name(1))


async def test_closing_ends_those_who_follow(engine: Engine, connect: Connect) -> None:
    sandbox, body = await engine.used()
    caller, follower = connect(), connect()
    caller.run(sandbox.id, stream=True, execution=name(1), on_disconnect="keep")
    await body.next_frame()
    follower.send(calls.FETCH, sandbox=sandbox.id, execution=name(1), wait=True)
    await connect().ask(calls.SANDBOXES)
    await connect().ask(calls.CLOSE, sandbox=sandbox.id)
    for client in (caller, follower):
        with pytest.raises(ExecutionCancelled, match="was closed"):
            await client.answer()


async def test_a_merge_takes_the_records_along(engine: Engine, connect: Connect) -> None:
    parent, _ = await engine.used()
    winner, body = await engine.used()
    client = connect()
    client.run(winner.id, execution=name(1))
    await body.next_frame()
    body.done(2, exit_code=9)
    await client.answers()
    for sandbox, own, code in ((parent, engine.machine.bodies[0], 3), (winner, body, 4)):
        client.run(sandbox.id, execution=name(2))
        number = (await own.next_frame()).header["id"]
        own.done(int(str(number)), exit_code=code)
        await client.answers()
    await engine.merge(parent, winner)
    assert (await fetched(client, parent.id, name(1)))[-1].header["exit_code"] == 9
    # Of two with one id the parent's own stays.
    assert (await fetched(client, parent.id, name(2)))[-1].header["exit_code"] == 3


def ended(executions: Executions, number: int, data_bytes: int) -> None:
    execution = executions.begin(name(number), True, lambda frame: None)
    execution.on_outcome(calls.Outcome(number, 0, "kept", stdout=b"x" * data_bytes))


def known(executions: Executions, numbers: range) -> list[int]:
    found = []
    for number in numbers:
        try:
            executions.find(name(number))
            found.append(number)
        except ExecutionUnknown:
            pass
    return found


def test_records_are_bounded_by_number_by_size_and_by_all_together() -> None:
    settings = replace(Settings(), executions=3, executions_bytes=1000)
    shelf = Shelf(3000)
    one, other = Executions(settings, shelf), Executions(settings, shelf)
    for number in range(5):
        ended(one, number, 10)
    assert known(one, range(5)) == [2, 3, 4]
    ended(one, 5, 900)
    assert known(one, range(6)) == [5]
    ended(one, 6, 2500)  # the newest is kept, however large
    assert known(one, range(7)) == [6]
    ended(other, 1, 600)
    assert (known(one, range(7)), known(other, range(7))) == ([], [1])
    unfinished = other.begin(name(9), True, lambda frame: None)
    ended(other, 10, 5000)
    assert known(other, range(12)) == [9, 10]
    assert unfinished.state == "waiting"
    other.clear()
    assert shelf.kept_bytes == 0
