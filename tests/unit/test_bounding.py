"""What is kept of a stream is bounded, and says what it is not."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from ramet.protocol.bounded_bytes import HeadAndTail, Tail


def test_a_stream_up_to_the_limit_is_kept_exactly() -> None:
    for length in (0, 1, 49, 50, 51, 99, 100):
        kept = HeadAndTail(100)
        data = bytes(range(length))
        for start in range(0, length, 7):
            kept.add(data[start : start + 7])
        assert kept.kept() == kept.everything() == data
        assert not kept.cut


@pytest.mark.parametrize("piece_bytes", [1, 3, 99, 5000])
def test_of_a_longer_stream_the_first_and_the_last_half_are_kept(piece_bytes: int) -> None:
    data = random.Random(1).randbytes(4000).translate(bytes(range(128)) * 2)  # ASCII: nothing to align
    kept = HeadAndTail(100)
    for start in range(0, len(data), piece_bytes):
        kept.add(data[start : start + piece_bytes])
    assert kept.cut
    assert kept.total_bytes == 4000
    assert kept.kept() == data[:50] + b"\n[... 3900 bytes left out ...]\n" + data[-50:]


@pytest.mark.parametrize("character", ["é", "€", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_the_gap_never_cuts_a_character(character: str, shift: int) -> None:
    kept = HeadAndTail(101)
    kept.add(b"a" * shift + character.encode() * 1000)
    text = kept.kept().decode("utf-8")  # strict: a cut character would raise
    assert text.startswith("a" * shift + character)
    assert text.endswith(character)


def test_bytes_that_are_no_text_are_kept_too() -> None:
    kept = HeadAndTail(100)
    kept.add(b"\x80" * 1000)
    assert kept.kept().count(b"\x80") >= 94


def test_memory_stays_bounded_however_small_the_pieces_are() -> None:
    kept = HeadAndTail(100_000)
    tracemalloc.start()
    try:
        for _ in range(300_000):
            kept.add(b"xyz")
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
    assert kept.total_bytes == 900_000


def test_a_tail_gives_the_last_bytes_once() -> None:
    tail = Tail(10)
    tail.add(b"0123456789abcdef")
    tail.add(b"gh")
    assert tail.take() == b"89abcdefgh"
    assert tail.take() == b""
    tail.add(b"short")
    assert tail.take() == b"short"
