"""Values of tools that come in parts, and answers that are not what they should be."""

from __future__ import annotations

import pytest

from ramet.errors import ProtocolError
from ramet.protocol import calls
from ramet.protocol.calls import CHUNK_BYTES
from ramet.protocol.tools import socket_frames
from tests.unit.scripted_tools import Scene, ToolClient
from tests.waiting import until


def in_parts(scene: Scene, call: object, first: bytes) -> ToolClient:
    other = scene.client.other()
    header = {"sandbox": scene.sandbox.id, "call": call, "outcome": "value", "more": True}
    other.post(calls.TOOL_ANSWER, first, **header)
    return other


async def test_a_value_in_parts_reaches_the_code_as_one(scene: Scene) -> None:
    cell = await scene.begin()
    code, call = await scene.called()
    link = in_parts(scene, call, b"first ")
    for part in (b"second ", b"", b"third"):
        link.post(calls.CHUNK, part)
    link.post(calls.END)
    assert (await link.answer()).header == {"taken": True}
    assert await code.value() == b"first second third"
    await code.call()
    again = (await scene.client.called()).header["call"]
    assert await scene.client.value(scene.sandbox, again, b"next")
    assert await code.value() == b"next"
    scene.body.done(cell)
    assert [row[2] for row in await scene.client.result()] == ["ok", "ok"]


@pytest.mark.parametrize("way", ["abort", "leave"])
async def test_a_value_that_breaks_off_ends_the_connection_of_the_code(scene: Scene, way: str) -> None:
    cell = await scene.begin()
    code, call = await scene.called()
    link = in_parts(scene, call, b"first")
    assert (await code.frame()).blob == b"first"
    if way == "abort":
        link.post(calls.ABORT)
        assert (await link.answer()).header == {"taken": False}
    else:
        link.leave()
    assert await code.ended()
    scene.body.done(cell)
    assert await scene.client.result() == [("look", {"n": 1}, "gone", "the answer ended before it was complete")]


async def test_a_value_for_nobody_is_taken_in_and_thrown_away(scene: Scene) -> None:
    link = in_parts(scene, "tc_none", b"x")
    for _ in range(10):
        link.post(calls.CHUNK, bytes(CHUNK_BYTES // 16))
    link.post(calls.END)
    assert (await link.answer()).header == {"taken": False}
    assert (await link.ask(calls.SANDBOXES)).header["sandboxes"]


@pytest.mark.parametrize("way", ["code leaves", "cell ends"])
async def test_a_value_that_nobody_waits_for_any_more_is_taken_in_to_its_end(scene: Scene, way: str) -> None:
    cell = await scene.begin()
    code, call = await scene.called()
    link = in_parts(scene, call, b"first")
    assert (await code.frame()).blob == b"first"
    if way == "code leaves":
        code.close()
        await until(lambda: not scene.sandbox.tools._calls)  # type: ignore[union-attr]
    else:
        scene.body.done(cell)
        assert (await scene.client.result())[0][2] == "cancelled"
        assert await code.ended()
    link.post(calls.CHUNK, b"second")
    link.post(calls.END)
    assert (await link.answer()).header == {"taken": False}


async def test_a_value_has_an_end(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_frames, "VALUE_BYTES_AT_MOST", 100)
    cell = await scene.begin()
    code, call = await scene.called()
    link = in_parts(scene, call, bytes(60))
    link.post(calls.CHUNK, bytes(60))
    link.post(calls.END)
    assert (await link.answer()).header == {"taken": False}
    await code.frame()
    assert await code.ended()
    scene.body.done(cell)
    assert (await scene.client.result())[0][2:] == ("gone", "the value has more than 100 bytes")


async def test_a_quiet_answer_may_come_over_the_connection_of_the_cell(scene: Scene) -> None:
    cell = await scene.begin()
    header = {"sandbox": scene.sandbox.id, "outcome": "value", "more": False, "quiet": True}
    for number in range(3):
        code, call = await scene.called()
        scene.client.post(calls.TOOL_ANSWER, str(number).encode(), call=call, **header)
        assert await code.value() == str(number).encode()
    code, call = await scene.called()
    failure = {**header, "outcome": "error", "message": "no"}
    scene.client.post(calls.TOOL_ANSWER, call=call, **failure)
    assert await code.failure() == ("error", "no")
    scene.body.done(cell)
    assert [row[2] for row in await scene.client.result()] == ["ok", "ok", "ok", "error"]
    # One that comes too late says nothing either: what follows is the answer to the next request.
    scene.client.post(calls.TOOL_ANSWER, b"late", call=call, **header)
    scene.client.post(calls.TOOL_ANSWER, b"late", call="tc_none", **{**header, "sandbox": "sbx_none"})
    assert "sandboxes" in (await scene.client.ask(calls.SANDBOXES)).header


async def test_a_quiet_answer_in_parts_is_a_breach(scene: Scene) -> None:
    await scene.begin()
    _, call = await scene.called()
    other = scene.client.other()
    header = {"sandbox": scene.sandbox.id, "call": call, "outcome": "value", "more": True, "quiet": True}
    other.post(calls.TOOL_ANSWER, **header)
    with pytest.raises(ProtocolError):
        await other.answer()


@pytest.mark.parametrize(
    "header",
    [
        {"outcome": "nonsense"},
        {"outcome": "error", "kind": "nonsense", "message": ""},
        {"outcome": "error", "kind": [], "message": ""},
        {"outcome": "error", "kind": "error", "message": 5},
        {"outcome": "error", "kind": "error", "message": "", "more": True},
        {"outcome": "value", "more": "yes"},
    ],
)
async def test_an_answer_that_makes_no_sense_is_a_breach(scene: Scene, header: dict[str, object]) -> None:
    await scene.begin()
    _, call = await scene.called()
    other = scene.client.other()
    other.post(calls.TOOL_ANSWER, **{"sandbox": scene.sandbox.id, "call": call, "more": False, **header})
    with pytest.raises(ProtocolError):
        await other.answer()
    assert await scene.client.value(scene.sandbox, call, b"") is True


async def test_a_part_that_is_too_long_is_a_breach(scene: Scene) -> None:
    await scene.begin()
    code, call = await scene.called()
    with pytest.raises(ProtocolError, match="at most 262144 allowed"):
        await in_parts(scene, call, b"first").post_much(calls.CHUNK, bytes(CHUNK_BYTES + 1))
    await code.frame()
    assert await code.ended()
