"""The last output of a sandbox: what is kept, in which order, and that it is bounded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from ramet.engine.output.replay import Replay
from ramet.engine.settings import Settings
from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder
from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import Engine, run
from tests.waiting import until

SMALL = replace(Settings(), replay_bytes=10, replay_pieces=3)


def shown(replay: Replay) -> list[Frame]:
    decoder = FrameDecoder(FROM_ENGINE)
    return [frame for data in replay.frames() for frame in decoder.feed(data)]


def test_the_oldest_pieces_go_when_there_are_too_many_bytes() -> None:
    replay = Replay(SMALL)
    for data in (b"12345", b"678", b"9abcdef"):
        replay.printed(0, data, "")
    assert [frame.blob for frame in shown(replay)] == [b"678", b"9abcdef"]


def test_the_oldest_pieces_go_when_there_are_too_many_pieces() -> None:
    replay = Replay(SMALL)
    for code in range(5):
        replay.exited(code, "exe")
    assert [frame.header["code"] for frame in shown(replay)] == [2, 3, 4]
    replay.printed(1, b"x", "exe")
    assert [frame.kind for frame in shown(replay)] == [calls.EXITED, calls.EXITED, calls.OUTPUT]


def test_a_piece_that_is_longer_than_the_ring_leaves_nothing() -> None:
    replay = Replay(SMALL)
    replay.printed(0, b"12345678901", "")
    assert shown(replay) == []
    replay.printed(0, b"1", "")
    assert [frame.blob for frame in shown(replay)] == [b"1"]


async def test_output_of_cells_and_between_them_in_order(engine: Engine, connect: Callable[[], Client]) -> None:
    sandbox, body = await engine.used()
    os.write(body.guest_stderr, b"between")
    execution = "exe_" + "a" * 32
    client, other = connect(), connect()
    client.run(sandbox.id, execution=execution)
    await body.next_frame()
    os.write(body.guest_stdout, b"of the cell")
    body.done(2, exit_code=3)
    await client.answers()
    other.send(calls.REPLAY, sandbox=sandbox.id)
    frames = await other.answers()
    said = [(frame.kind, dict(frame.header), frame.blob) for frame in frames]
    for _, header, _ in said[:-1]:
        assert isinstance(header.pop("ts_ms"), int)
    assert said == [
        (calls.EXITED, {"code": 0, "execution": ""}, b""),
        (calls.OUTPUT, {"stream": 1, "execution": ""}, b"between"),
        (calls.OUTPUT, {"stream": 0, "execution": execution}, b"of the cell"),
        (calls.EXITED, {"code": 3, "execution": execution}, b""),
        (calls.ANSWER, {}, b""),
    ]


async def test_a_child_begins_with_an_empty_log_and_a_merge_appends_it(engine: Engine) -> None:
    parent, body = await engine.used()
    os.write(body.guest_stdout, b"parent")
    await run(parent, body)
    children = await engine.fork(parent)
    child, child_body = children.sandboxes[0], engine.machine.bodies[-1]
    assert shown(child.replay) == []
    os.write(child_body.guest_stdout, b"child")
    await run(child, child_body)
    await engine.merge(parent, child)
    os.write(child_body.guest_stdout, b"after")
    await until(lambda: [frame.blob for frame in shown(parent.replay) if frame.blob] == [b"parent", b"child", b"after"])
