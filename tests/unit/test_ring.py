"""The end of a stream of bytes, by number."""

from __future__ import annotations

from ramet.engine.output.ring import Ring


def test_what_fits_is_kept_from_its_first_byte() -> None:
    ring = Ring(10)
    ring.append(b"0123")
    ring.append(b"4567")
    assert (ring.start, ring.end) == (0, 8)
    assert ring.read(0, 100) == (0, b"01234567")
    assert ring.read(3, 2) == (3, b"34")


def test_a_reader_who_is_late_is_told_from_where_on_it_reads() -> None:
    ring = Ring(10)
    ring.append(b"0123456789abcdef")
    assert (ring.start, ring.end) == (6, 16)
    assert ring.read(0, 4) == (6, b"6789")


def test_nothing_is_there_beyond_the_end() -> None:
    ring = Ring(10)
    ring.append(b"0123")
    assert ring.read(4, 5) == (4, b"")
    assert ring.read(99, 5) == (4, b"")
