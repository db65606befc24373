"""Answers come in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.errors import ProtocolError
from ramet.protocol import calls
from ramet.protocol.frames import Frame, encode
from ramet.transport.http.messages import HttpAnswer
from tests.http_client.servers import FORTY_TWO, answer, chunked, refusal

BEAT = encode(calls.HEARTBEAT, {})
OUTPUT = encode(calls.OUTPUT, {"stream": 0}, b"x" * 300)


def fed(pieces: list[bytes]) -> tuple[HttpAnswer, list[Frame]]:
    taken, frames = HttpAnswer(), []
    for piece in pieces:
        taken.feed(piece)
        while (frame := taken.next_frame()) is not None:
            frames.append(frame)
    return taken, frames


@given(st.data())
def test_frames_are_the_same_however_they_are_cut(data: st.DataObject) -> None:
    whole = data.draw(
        st.sampled_from(
            [
                answer(FORTY_TWO),
                chunked(BEAT, OUTPUT, BEAT, OUTPUT, FORTY_TWO) + b"0\r\n\r\n",
                b"HTTP/1.1 100 Continue\r\n\r\n" + answer(OUTPUT, OUTPUT, FORTY_TWO),
            ]
        )
    )
    cuts = sorted(data.draw(st.lists(st.integers(1, len(whole) - 1), max_size=30)))
    taken, frames = fed([whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True) if a < b])
    assert [frame.kind for frame in frames] in ([calls.RESULT], [calls.OUTPUT, calls.OUTPUT, calls.RESULT])
    assert taken.over
    assert taken.complete
    assert taken.reusable


def test_a_refusal_is_kept_up_to_a_bound() -> None:
    whole = refusal(b"400 Bad", b"x" * 10_000_000)
    taken, frames = fed([whole[start : start + 65536] for start in range(0, len(whole), 65536)])
    assert not frames
    assert taken.refused
    assert taken.complete
    assert len(taken.refusal) == 65536


def test_a_large_frame_is_read_in_large_pieces() -> None:
    taken = HttpAnswer()
    taken.feed(answer(encode(calls.CHUNK, {}, b"x" * 10_000_000))[:70_000])
    assert taken.next_frame() is None
    assert taken.wanted_bytes == 1 << 20


def test_bytes_after_an_answer_are_a_protocol_error() -> None:
    taken, _ = fed([answer(FORTY_TWO)])
    with pytest.raises(ProtocolError):
        taken.feed(b"garbage")
