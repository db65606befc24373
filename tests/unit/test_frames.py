"""Frames survive any cut of the stream, and nothing that breaks their rules gets through."""

from __future__ import annotations

import random
import struct

import pytest

from ramet.errors import ProtocolError
from ramet.protocol import calls
from ramet.protocol.frames import Bounds, Frame, FrameDecoder, encode

BOUNDS = Bounds(header_bytes=1000, blob_bytes=5000)


def raw(header: bytes, blob: bytes = b"", *, version: int = 1, header_length: int | None = None) -> bytes:
    length = len(header) if header_length is None else header_length
    return struct.pack("<IBBI", 6 + len(header) + len(blob), version, 7, length) + header + blob


def decode_all(data: bytes, piece_bytes: int = 100_000) -> list[Frame]:
    decoder = FrameDecoder(BOUNDS)
    pieces = (data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes))
    return [frame for piece in pieces for frame in decoder.feed(piece)]


def test_a_frame_has_the_documented_layout() -> None:
    assert encode(3, {"a": 1}, b"xyz") == b"\x10\0\0\0" + b"\x01\x03" + b"\x07\0\0\0" + b'{"a":1}' + b"xyz"


def test_each_kind_of_call_has_a_number_of_its_own() -> None:
    numbers = {name: value for name, value in vars(calls).items() if name.isupper() and isinstance(value, int)}
    del numbers["KIND_AT"]  # a place in the frame, not a kind
    by_number: dict[int, list[str]] = {}
    for name, number in numbers.items():
        by_number.setdefault(number, []).append(name)
    assert {number: names for number, names in by_number.items() if len(names) > 1} == {}


def test_frames_come_out_as_they_went_in_however_the_stream_is_cut() -> None:
    dice = random.Random(7)
    for _ in range(200):
        frames = [
            Frame(dice.randrange(256), {"n": dice.random(), "s": "é\udc80\0"}, dice.randbytes(dice.randrange(3000)))
            for _ in range(dice.randrange(1, 6))
        ]
        data = b"".join(encode(frame.kind, frame.header, frame.blob) for frame in frames)
        decoder = FrameDecoder(BOUNDS)
        decoded: list[Frame] = []
        while data:
            size = dice.choice((1, 3, 10, 500, 10_000))
            decoded += decoder.feed(data[:size])
            data = data[size:]
        assert [frame[:3] for frame in decoded] == [frame[:3] for frame in frames]
        assert all(len(encode(*frame[:3])) == 10 + frame.header_bytes + len(frame.blob) for frame in decoded)
        assert not decoder.in_frame


def test_frames_behind_one_that_the_caller_stopped_at_are_kept() -> None:
    decoder = FrameDecoder(BOUNDS)
    first = next(decoder.feed(encode(1, {}) + encode(2, {}) + encode(3, {})))
    assert first.kind == 1
    assert [frame.kind for frame in decoder.feed(b"")] == [2, 3]


def test_the_largest_allowed_frame_passes() -> None:
    header = b'{"a":"' + b"x" * (1000 - 8) + b'"}'
    assert len(decode_all(raw(header, b"b" * 5000))) == 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(raw(b"{}", version=2), id="another version"),
        pytest.param(raw(b"{" + b" " * 1000 + b"}"), id="long header"),
        pytest.param(raw(b"{}", b"b" * 5001), id="long blob"),
        pytest.param(raw(b"{}", header_length=3), id="header longer than the frame"),
        pytest.param(struct.pack("<IBBI", 0, 1, 1, 0), id="length zero"),
        pytest.param(raw(b"[]"), id="not an object"),
        pytest.param(raw(b""), id="empty header"),
        pytest.param(raw(b"{}x"), id="something behind the object"),
        pytest.param(raw(b" {}"), id="something before the object"),
        pytest.param(raw(b'{"a":NaN}'), id="not a number"),
        pytest.param(raw(b'{"a":Infinity}'), id="infinity"),
        pytest.param(raw('{"a":"é"}'.encode()), id="not ASCII"),
        pytest.param(raw(b'{"a":'), id="cut off"),
        pytest.param(raw(b'{"a":1' + b"0" * 900 + b"}x"), id="huge number with rubbish"),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 100_000])
def test_a_frame_that_breaks_a_rule_is_refused(data: bytes, piece_bytes: int) -> None:
    with pytest.raises(ProtocolError):
        decode_all(data, piece_bytes)


def test_deep_nesting_is_refused_and_does_not_crash() -> None:
    header = b"[" * 500_000
    with pytest.raises(ProtocolError):
        list(FrameDecoder(Bounds(1_000_000, 0)).feed(raw(header)))


@pytest.mark.parametrize("header_length", [2, 2**32 - 1 - 6], ids=["of the blob", "of the header"])
def test_an_oversized_frame_is_refused_by_its_first_ten_bytes(header_length: int) -> None:
    with pytest.raises(ProtocolError):
        list(FrameDecoder(BOUNDS).feed(struct.pack("<IBBI", 2**32 - 1, 1, 1, header_length)))


def test_random_bytes_give_frames_or_a_protocol_error_and_nothing_else() -> None:
    dice = random.Random(11)
    good = encode(1, {"id": 1, "mimes": [["text/plain", "s", 3]]}, b"abc")
    for _ in range(3000):
        data = bytearray(good * 2)
        for _ in range(dice.randrange(1, 5)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            frames = decode_all(bytes(data))
        except ProtocolError:
            continue
        assert all(isinstance(frame, Frame) for frame in frames)
