"""Long texts are cut in the middle, and the same way whether they come whole or in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramet.integrations.bounding import Bounded, bounded


def test_a_short_text_is_left_alone() -> None:
    assert bounded("x" * 10, 10) == "x" * 10


def test_a_long_text_keeps_its_beginning_and_more_of_its_end() -> None:
    assert bounded("abcdefghijklmno", 10) == "abcd\n... 5 characters left out ...\njklmno"


@given(st.lists(st.text(max_size=30)), st.integers(2, 40))
def test_pieces_give_what_the_whole_gives(pieces: list[str], limit: int) -> None:
    collected = Bounded(limit)
    for piece in pieces:
        collected.add(piece)
    assert collected.text() == bounded("".join(pieces), limit)


def test_little_is_kept_of_much() -> None:
    collected = Bounded(100)
    for _ in range(1000):
        collected.add("x" * 1000)
    assert len(collected.text()) < 150
    assert sum(map(len, collected._tail)) < 200
