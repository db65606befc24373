"""Frames that pass through the server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.doors.http.engine_link.frame_relay import FrameScanner, WholeFrames
from ramet.errors import ProtocolError
from ramet.protocol import calls
from ramet.protocol.frames import encode

_BLOBS = st.lists(st.binary(max_size=60), max_size=6)
_CUTS = st.lists(st.integers(min_value=1, max_value=80), min_size=1)


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    pieces: list[bytes] = []
    at = 0
    while at < len(data):
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(data[at : at + size])
        at += size
    return pieces


@given(_BLOBS, _CUTS)
def test_the_end_of_an_answer_is_found_however_it_comes(blobs: list[bytes], cuts: list[int]) -> None:
    frames = [encode(calls.OUTPUT, {"stream": 0}, blob) for blob in blobs] + [encode(calls.RESULT, {"id": 1}, b"last")]
    scanner = FrameScanner()
    seen = 0
    for piece in _cut(b"".join(frames), cuts):
        assert not scanner.final
        scanner.feed(piece)
        seen += len(piece)
        ends = [sum(map(len, frames[: count + 1])) for count in range(len(frames))]
        begun = seen - max((end for end in ends if end <= seen), default=0)
        assert scanner.begun_bytes == begun
        assert scanner.between_frames == (begun == 0)
    assert scanner.final
    assert scanner.count == len(frames)
    assert scanner.frame_bytes == len(frames[-1])
    assert scanner.first_kind == (calls.OUTPUT if blobs else calls.RESULT)


@given(_BLOBS, _CUTS)
def test_whole_frames_are_passed_on_and_nothing_is_lost(blobs: list[bytes], cuts: list[int]) -> None:
    data = b"".join([encode(calls.OUTPUT, {}, blob) for blob in blobs] + [encode(calls.ANSWER, {})])
    scanner, passed = FrameScanner(), b""
    whole = WholeFrames(scanner)
    for piece in _cut(data, cuts):
        scanner.feed(piece)
        passed += whole.feed(piece)
        check = FrameScanner()
        check.feed(passed)
        assert whole.at_border
        assert check.between_frames
    assert passed == data


def test_a_very_long_frame_is_passed_on_as_it_comes() -> None:
    frame = encode(calls.RESULT, {}, b"x" * 3_000_000)
    scanner = FrameScanner()
    whole = WholeFrames(scanner)
    passed = []
    for piece in _cut(frame, [500_000]):
        scanner.feed(piece)
        passed.append(whole.feed(piece))
        if not scanner.final and any(passed):
            assert not whole.at_border
    assert b"".join(passed) == frame
    assert whole.at_border
    assert len(passed[2]) == 1_500_000


def test_what_follows_the_last_frame_is_refused() -> None:
    with pytest.raises(ProtocolError, match="follows"):
        FrameScanner().feed(encode(calls.ANSWER, {}) + b"x")


def test_a_kind_that_is_not_allowed_is_refused_at_its_first_bytes() -> None:
    scanner = FrameScanner(last=frozenset((calls.END,)), allowed=frozenset((calls.CHUNK, calls.END)))
    scanner.feed(encode(calls.CHUNK, {}, b"data"))
    with pytest.raises(ProtocolError, match="kind 4"):
        scanner.feed(encode(calls.CLOSE, {"sandbox": "another's"})[:6])


@pytest.mark.parametrize("data", [b"\x06\0\0\0\x02\x1e", b"\x01\0\0\0\x01\x1e", b"GET / HTTP/1.1"])
def test_what_is_not_a_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a frame"):
        FrameScanner().feed(data)
