"""Tool calls with a scripted guest: who may make them, who answers, and how each can end."""

from __future__ import annotations

import pytest

from ramet.protocol import calls
from ramet.protocol.frames import encode
from ramet.protocol.tools import socket_frames
from tests.unit.scripted import ScriptedDeath
from tests.unit.scripted_engine import Engine
from tests.unit.scripted_tools import Scene, begun, rows, tool
from tests.waiting import until

NO_CELL = "no cell is running: a tool can be called only while one is"
NO_ANSWERER = "the program that runs this cell answers no tool calls"
GONE = "the program that answers tool calls has gone away"
ENDED = "the cell that made this call has ended"
LEFT = "the code that made this call waits for it no more"


async def test_a_call_goes_to_the_client_of_the_running_cell_and_its_value_back(scene: Scene) -> None:
    cell = await scene.begin()
    code = scene.code()
    await code.send(encode(socket_frames.CALL, {"tool": "look", "accepts": ["arrow", "npy"]}, b'{"n": 1}'))
    call = await scene.client.called()
    assert (call.header["tool"], call.header["accepts"], call.blob) == ("look", ["arrow", "npy"], b'{"n": 1}')
    assert str(call.header["call"]).startswith("tc_")
    assert await scene.client.value(scene.sandbox, call.header["call"], b"seen") is True
    assert await code.value() == b"seen"
    scene.body.done(cell)
    assert await scene.client.result() == [("look", {"n": 1}, "ok", None)]


async def test_one_connection_makes_many_calls_one_after_the_other(scene: Scene) -> None:
    cell = await scene.begin()
    code = scene.code()
    for number in range(20):
        await code.call("other" if number % 2 else "look", f'{{"n": {number}}}'.encode())
        call = await scene.client.called()
        assert await scene.client.value(scene.sandbox, call.header["call"], call.blob)
        assert await code.value() == call.blob
    scene.body.done(cell)
    found = await scene.client.result()
    assert [row[:2] for row in found] == [("other" if n % 2 else "look", {"n": n}) for n in range(20)]


async def test_calls_at_the_same_time_are_answered_in_any_order(scene: Scene) -> None:
    await scene.begin()
    waiting = [await scene.called() for _ in range(5)]
    for number, (code, call) in reversed(list(enumerate(waiting))):
        assert await scene.client.value(scene.sandbox, call, str(number).encode())
        assert await code.value() == str(number).encode()


@pytest.mark.parametrize("kind", sorted(socket_frames.FAILURE_KINDS))
async def test_a_failure_is_told_to_the_code_in_the_clients_words(scene: Scene, kind: str) -> None:
    cell = await scene.begin()
    code, call = await scene.called()
    assert await scene.client.failure(scene.sandbox, call, kind, "no such thing: ü \ud800")
    assert await code.failure() == (kind, "no such thing: ü \ud800")
    scene.body.done(cell)
    assert await scene.client.result() == [("look", {"n": 1}, kind, "no such thing: ü \ud800")]


async def test_a_call_between_cells_is_refused(scene: Scene) -> None:
    code = scene.code()
    await code.call()
    assert await code.failure() == ("refused", NO_CELL)
    cell = await scene.begin()
    scene.body.done(cell)
    assert await scene.client.result() == []
    await code.call()
    assert await code.failure() == ("refused", NO_CELL)


async def test_a_call_of_a_tool_that_was_not_given_is_refused(scene: Scene) -> None:
    cell = await scene.begin()
    code = scene.code()
    await code.call("nothing" * 100)
    kind, message = await code.failure()
    assert kind == "unknown"
    assert "given no tool 'nothingnothing" in str(message)
    assert len(str(message)) < 200
    scene.body.done(cell)
    assert (await scene.client.result())[0][:3] == (("nothing" * 100)[:64], {}, "unknown")


@pytest.mark.parametrize("more", [{"tools": False}, {}])
async def test_a_call_that_nobody_will_answer_is_refused_at_once(scene: Scene, more: dict[str, object]) -> None:
    scene.client.run(scene.sandbox.id, **more)  # type: ignore[arg-type]
    cell = await begun(scene.body)
    code = scene.code()
    await code.call()
    assert await code.failure() == ("refused", NO_ANSWERER)
    scene.body.done(cell)
    assert await scene.client.result() == [("look", {}, "refused", NO_ANSWERER)]


async def test_a_tool_is_called_so_many_times_in_a_cell_and_again_in_the_next(scene: Scene) -> None:
    await scene.client.give(scene.sandbox, tool(calls_per_cell=2), tool("never", calls_per_cell=0))
    limit = "tool look was called 2 times in this cell, which is its limit"
    for _ in range(2):
        cell = await scene.begin()
        for _ in range(2):
            code, call = await scene.called()
            assert await scene.client.value(scene.sandbox, call, b"")
            await code.value()
        await code.call()
        assert await code.failure() == ("refused", limit)
        await code.call("never")
        assert (await code.failure())[0] == "refused"
        scene.body.done(cell)
        assert [row[2] for row in await scene.client.result()] == ["ok", "ok", "refused", "refused"]


async def test_a_tool_that_takes_too_long_fails_and_its_client_is_told(scene: Scene) -> None:
    await scene.client.give(scene.sandbox, tool(timeout_seconds=0.01))
    cell = await scene.begin()
    code, call = await scene.called()
    assert await code.failure() == ("timeout", "tool look gave no answer within 0.01 seconds")
    cancelled = await scene.client.answer()
    assert (cancelled.kind, cancelled.header) == (calls.TOOL_CANCELLED, {"call": call})
    assert await scene.client.value(scene.sandbox, call, b"late") is False
    assert code.silent()
    scene.body.done(cell)
    assert (await scene.client.result())[0][2] == "timeout"


async def test_calls_end_with_their_cell(scene: Scene) -> None:
    cell = await scene.begin()
    code, call = await scene.called()
    scene.body.done(cell)
    assert await code.failure() == ("cancelled", ENDED)
    # The client hears of it before the result, so that it can stop its handler.
    assert (await scene.client.answer()).header == {"call": call}
    assert await scene.client.result() == [("look", {"n": 1}, "cancelled", ENDED)]
    assert await scene.client.value(scene.sandbox, call, b"late") is False
    # The connection is as good as before.
    await scene.begin()
    await code.call()
    again = (await scene.client.called()).header["call"]
    assert again != call
    assert await scene.client.value(scene.sandbox, again, b"in time") is True
    assert await code.value() == b"in time"


async def test_calls_end_with_the_death_of_the_repl(scene: Scene) -> None:
    await scene.begin()
    code, call = await scene.called()
    scene.body.die(ScriptedDeath(None, 11))
    assert (await scene.client.answer()).kind == calls.TOOL_CANCELLED
    assert await scene.client.result() == [("look", {"n": 1}, "cancelled", ENDED)]
    assert await code.failure() == ("cancelled", ENDED)


async def test_calls_end_when_the_sandbox_is_closed(scene: Scene) -> None:
    await scene.begin()
    code, call = await scene.called()
    other = scene.client.other()
    await other.ask(calls.CLOSE, sandbox=scene.sandbox.id)
    assert await code.failure() == ("gone", GONE)
    assert await code.ended()
    assert await scene.client.value(scene.sandbox, call, b"late") is False


async def test_code_that_goes_away_takes_its_call_back(scene: Scene) -> None:
    cell = await scene.begin()
    code, call = await scene.called()
    code.close()
    assert (await scene.client.answer()).header == {"call": call}
    assert await scene.client.value(scene.sandbox, call, b"late") is False
    scene.body.done(cell)
    assert await scene.client.result() == [("look", {"n": 1}, "cancelled", LEFT)]


async def test_a_client_that_goes_away_ends_its_calls_and_later_ones_are_refused(scene: Scene) -> None:
    cell = await scene.begin(execution="exe_" + "0" * 32, on_disconnect="keep")
    code, _ = await scene.called()
    scene.client.leave()
    assert await code.failure() == ("gone", GONE)
    await code.call()
    assert await code.failure() == ("gone", GONE)
    scene.body.done(cell)
    follower = scene.client.other()
    frame = await follower.ask(calls.FETCH, sandbox=scene.sandbox.id, execution="exe_" + "0" * 32, wait=True)
    assert [row[2] for row in rows(frame)] == ["gone", "gone"]


@pytest.mark.parametrize("more", [{}, {"execution": "exe_" + "0" * 32, "on_disconnect": "interrupt"}])
async def test_a_client_that_goes_away_interrupts_its_cell_and_then_ends_its_calls(
    scene: Scene, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.begin(**more)
    code, _ = await scene.called()
    unanswered: list[bool] = []
    # Code that learns first that nobody answers could end before the interrupt comes.
    monkeypatch.setattr(scene.body, "signal", lambda number: unanswered.append(code.silent()))
    scene.client.leave()
    assert await code.failure() == ("gone", GONE)
    assert unanswered == [True]


async def test_it_can_be_said_that_nobody_answers_any_more(scene: Scene) -> None:
    first, second = (f"exe_{number:032x}" for number in (1, 2))
    cell = await scene.begin(execution=first, on_disconnect="keep")
    waiting = scene.client.other()
    waiting.run(scene.sandbox.id, tools=True, execution=second, on_disconnect="keep")
    code, _ = await scene.called()
    await until(lambda: scene.sandbox.queue.waiting == 1)
    other = scene.client.other()
    for execution in (second, first, first, "exe_none"):
        answer = await other.ask(calls.TOOLS_GONE, sandbox=scene.sandbox.id, execution=execution)
        assert answer.header == {}
    assert (await other.ask(calls.TOOLS_GONE, sandbox="sbx_none", execution=first)).header == {}
    assert await code.failure() == ("gone", GONE)
    scene.body.done(cell)
    assert [row[2] for row in await scene.client.result()] == ["gone"]
    cell = await begun(scene.body)
    await code.call()
    assert await code.failure() == ("gone", GONE)
    scene.body.done(cell)
    assert [row[2] for row in await waiting.result()] == ["gone"]


async def test_an_answer_to_no_call_is_not_taken(scene: Scene, engine: Engine) -> None:
    await scene.begin()
    _, call = await scene.called()
    assert await scene.client.value(scene.sandbox, "tc_none", b"") is False
    other, _ = await engine.used()
    assert await scene.client.value(other, call, b"") is False  # a sandbox that has no tools
    foreign = scene.client.other()
    header = {"sandbox": scene.sandbox.id, "call": call, "outcome": "value", "more": False}
    foreign.post(calls.TOOL_ANSWER, owner="somebody else", **header)
    assert (await foreign.answer()).header == {"taken": False}
    foreign.post(calls.TOOL_ANSWER, **{**header, "sandbox": "sbx_none"})
    assert (await foreign.answer()).header == {"taken": False}
    assert await scene.client.value(scene.sandbox, call, b"") is True
    assert await scene.client.value(scene.sandbox, call, b"") is False  # twice
