"""Tool calls under pressure, with scripted bodies: who is slow or breaks the rules holds up only itself."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.engine.tools.records import ToolCallRecords
from ramet.protocol import calls
from ramet.protocol.frames import encode
from ramet.protocol.tools import socket_frames
from ramet.protocol.tools.records import read_records
from tests.unit.scripted_engine import SETTINGS, Engine
from tests.unit.scripted_tools import Code, Scene, ToolClient, tool
from tests.waiting import settle, until

MIB = 1024 * 1024
LARGE = 2 * MIB
SMALL_ROOM = replace(SETTINGS, tool_links=4, tool_arguments_bytes=3 * MIB, all_tool_links=6, few_tool_links=1)


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[Scene]:
    """A sandbox with room for few calls at a time."""
    engine = Engine(tmp_path, SMALL_ROOM)
    client = ToolClient(engine)
    scene = Scene(engine, client)
    await scene.set(tool())
    yield scene
    scene.close()
    await client.left()
    await engine.registry.close()


def large_call(size: int = LARGE) -> bytes:
    return encode(socket_frames.CALL, {"tool": "look", "accepts": []}, bytes(size))


async def send_forty_parts(link: ToolClient) -> object:
    """The rest of a value. Tells whether it was taken."""
    part = encode(calls.CHUNK, {}, bytes(calls.CHUNK_BYTES))
    return (await link.post_raw(part * 40 + encode(calls.END, {}))).header["taken"]


async def test_code_that_does_not_read_its_value_holds_up_only_itself(scene: Scene) -> None:
    await scene.begin()
    (slow, slow_call), (quick, quick_call) = await scene.called(), await scene.called()
    links = [scene.client.other(), scene.client.other()]
    for link, call in zip(links, (slow_call, quick_call), strict=True):
        link.post(calls.TOOL_ANSWER, sandbox=scene.sandbox.id, call=call, outcome="value", more=True)
    held_up = asyncio.ensure_future(send_forty_parts(links[0]))
    passing = asyncio.ensure_future(send_forty_parts(links[1]))
    assert len(await quick.value()) == 40 * calls.CHUNK_BYTES
    assert await passing is True
    # What the engine holds for the slow one is little, and its client waits.
    await settle()
    assert not held_up.done()
    service = scene.sandbox.tools
    assert service is not None
    assert service._calls[str(slow_call)].link.channel.unsent_bytes < 3 * calls.CHUNK_BYTES
    assert len(await slow.value()) == 40 * calls.CHUNK_BYTES
    assert await held_up is True


async def test_a_client_is_not_kept_waiting_by_code_that_has_gone(scene: Scene) -> None:
    await scene.begin()
    code, call = await scene.called()
    link = scene.client.other()
    link.post(calls.TOOL_ANSWER, sandbox=scene.sandbox.id, call=call, outcome="value", more=True)
    sending = asyncio.ensure_future(send_forty_parts(link))
    await code.frame()
    await settle()
    code.close()
    assert await asyncio.wait_for(sending, 5) is False


async def test_a_client_that_does_not_read_is_not_told_more(scene: Scene) -> None:
    """Each call is large, but not so large that it needs room; only so many are in the engine's hands."""
    await scene.begin()
    codes = [scene.code() for _ in range(20)]
    await asyncio.gather(*(code.send(large_call(200 * 1024)) for code in codes))
    service = scene.sandbox.tools
    assert service is not None
    await until(lambda: bool(service._untold))
    seen = []
    for _ in codes:
        call = await scene.client.called()
        seen.append(call.header["call"])
        assert await scene.client.value(scene.sandbox, call.header["call"], b"x")
    assert len(set(seen)) == 20
    for code in codes:
        assert await code.value() == b"x"


async def test_an_untold_call_can_end_before_it_is_told(scene: Scene) -> None:
    cell = await scene.begin()
    codes = [scene.code() for _ in range(20)]
    await asyncio.gather(*(code.send(large_call(200 * 1024)) for code in codes))
    service = scene.sandbox.tools
    assert service is not None
    await until(lambda: len(service._calls) == 20)
    last = service._untold[-1].link
    for code in codes[10:]:
        code.close()
    await until(lambda: len(service._calls) <= 10)
    assert last.call is None
    scene.body.done(cell)
    frames = await scene.client.answers()
    told = [frame.header["call"] for frame in frames if frame.kind == calls.TOOL_CALL]
    taken_back = [frame.header["call"] for frame in frames if frame.kind == calls.TOOL_CANCELLED]
    assert sorted(map(str, told)) == sorted(map(str, taken_back))
    assert len(calls.read_result(frames[-1]).tool_calls) == 20


async def test_large_calls_take_turns(narrow: Scene) -> None:
    """There is room for one of them at a time."""
    cell = await narrow.begin()
    codes = [narrow.code() for _ in range(3)]
    call = large_call()
    for code in codes:
        await code.send(call[: 300 * 1024 // 3])  # each has begun
    await settle()
    sending = [asyncio.ensure_future(code.send(call[300 * 1024 // 3 :])) for code in codes]
    for _ in codes:
        assert len((await narrow.client.called()).blob) == LARGE
    await asyncio.gather(*sending)
    narrow.body.done(cell)
    found = calls.read_result((await narrow.client.answers())[-1]).tool_calls
    assert [(one.name, one.arguments) for one in found] == [("look", None)] * 3


async def test_a_large_call_that_never_comes_to_its_end_keeps_others_waiting_until_it_is_gone(narrow: Scene) -> None:
    await narrow.begin()
    stuck, patient, small = (narrow.code() for _ in range(3))
    await stuck.send(large_call()[: MIB // 4])
    await settle()
    waiting = asyncio.ensure_future(patient.send(large_call()))
    await settle()
    assert not waiting.done()
    await small.call()
    assert (await narrow.client.called()).blob == b"{}"
    stuck.close()
    assert len((await narrow.client.called()).blob) == LARGE
    await waiting


async def test_an_idle_connection_makes_room_for_a_new_one(narrow: Scene) -> None:
    await narrow.begin()
    busy, call = await narrow.called()
    idle = [narrow.code() for _ in range(3)]
    await settle()
    newest = narrow.code()
    await newest.call()
    assert (await narrow.client.called()).header["call"] != call
    assert await idle[0].ended()  # the one that was idle for the longest time
    assert all(code.silent() for code in idle[1:])
    assert await narrow.client.value(narrow.sandbox, call, b"") is True
    assert await busy.value() == b""


async def test_where_every_connection_is_busy_a_new_one_waits(narrow: Scene) -> None:
    await narrow.begin()
    busy = [await narrow.called() for _ in range(4)]
    late = narrow.code()
    await late.call()
    await settle()
    assert not narrow.client.readable()
    assert await narrow.client.value(narrow.sandbox, busy[2][1], b"")
    assert (await narrow.client.called()).header["tool"] == "look"
    await busy[2][0].value()


async def test_where_all_sandboxes_have_many_connections_each_has_few(narrow: Scene) -> None:
    await narrow.begin()
    busy = [await narrow.called() for _ in range(3)]
    other, body = await narrow.engine.used()
    client = narrow.client.other()
    await client.give(other, tool())
    await client.begin(other, body)
    codes = []
    for _ in range(3):
        codes.append(Code(body))
        await codes[-1].call()
        await client.called()
    # Six: no more for either, though each could have four.
    waiting = Code(body)
    await waiting.call()
    await settle()
    assert not client.readable()
    # One that has none gets one all the same.
    third, its_body = await narrow.engine.used()
    its_client = narrow.client.other()
    await its_client.give(third, tool())
    await its_client.begin(third, its_body)
    first = Code(its_body)
    await first.call()
    await its_client.called()
    for code in (*codes, first, *(code for code, _ in busy)):
        code.close()
    assert (await client.answer()).kind == calls.TOOL_CANCELLED
    waiting.close()


BREACHES = {
    "nonsense": b"hello, engine\n" * 10,
    "another version": struct.pack("<IBBI", 8, 2, 1, 2) + b"{}",
    "an answer": encode(socket_frames.ANSWER, {"outcome": "value", "more": False}),
    "a part": encode(socket_frames.MORE, {"more": False}),
    "an unknown kind": encode(99, {}),
    "a call of nothing": encode(socket_frames.CALL, {}),
    "a name that is a number": encode(socket_frames.CALL, {"tool": 5}),
    "accepts that is no list": encode(socket_frames.CALL, {"tool": "look", "accepts": "all"}),
    "too much that is accepted": encode(socket_frames.CALL, {"tool": "look", "accepts": ["x"] * 17}),
    "a long word that is accepted": encode(socket_frames.CALL, {"tool": "look", "accepts": ["x" * 65]}),
    "a long header": encode(socket_frames.CALL, {"tool": "x" * 9000}),
    "huge arguments": struct.pack("<IBBI", 6 + 2 + 16 * MIB + 1, 1, 1, 2) + b"{}",
}


@pytest.mark.parametrize("breach", BREACHES)
async def test_a_breach_of_the_protocol_ends_one_connection(scene: Scene, breach: str) -> None:
    cell = await scene.begin()
    good, call = await scene.called()
    bad = scene.code()
    await bad.send(BREACHES[breach])
    assert await bad.ended()
    assert await scene.client.value(scene.sandbox, call, b"x") is True
    assert await good.value() == b"x"
    scene.body.done(cell)
    assert await scene.client.result() == [("look", {"n": 1}, "ok", None)]


@pytest.mark.parametrize("size", [2, LARGE])
async def test_a_second_call_before_the_answer_ends_the_connection_and_both_calls(scene: Scene, size: int) -> None:
    await scene.begin()
    code, call = await scene.called()
    sending = asyncio.ensure_future(code.send(large_call(size)))
    assert (await scene.client.answer()).header == {"call": call}
    assert await code.ended()
    await asyncio.gather(sending, return_exceptions=True)
    assert await scene.client.value(scene.sandbox, call, b"") is False


async def test_code_that_never_reads_its_answers_cannot_pile_them_up(scene: Scene) -> None:
    """Refusals here: they come at once."""
    code = scene.code()
    many = encode(socket_frames.CALL, {"tool": "look", "accepts": []}, b"{}") * 100_000
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        await code.send(many)


async def test_calls_that_come_in_one_piece_are_not_served(scene: Scene) -> None:
    """All of them would be refused in one go, and everybody else wait meanwhile."""
    code = scene.code()
    await code.send(encode(socket_frames.CALL, {"tool": "look", "accepts": []}, b"{}") * 2)
    assert await code.ended()


async def test_records_are_bounded_in_number_and_size() -> None:
    records = ToolCallRecords()
    for number in range(1500):
        records.add("look", b'"' + b"\x01" * 16_000 + b'"', 0.1, "error", f"{number}" + "\ud800" * 16_000)
    data = records.encoded()
    assert len(data) < 10 * MIB
    assert records.dropped == 500
    found = read_records(b"before" + data, len(data))
    assert len(found) == 1000
    assert (found[-1].arguments, (found[-1].message or "")[:3]) == (None, "999")
