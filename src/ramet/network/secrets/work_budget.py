"""Bounds the work that answers may cause in the search for secrets.

One process searches for the secrets of all sandboxes. An answer that takes too long is not passed on: a repetitive
value ("%%%%...") with an answer of the same characters would take hours. The work depends on the answer's length. More
is only needed where nearly every byte begins something that resembles a value for long, which unguessable values do not
cause. So such a refusal reveals nothing of an unguessable value.
"""

from __future__ import annotations

from collections.abc import Iterator

from ramet.network.http.heads import Malformed

# A step is a comparison: some tenths of a microsecond.
_STEPS_PER_BYTE = 12
_STEPS_AT_MOST = 250_000  # at once, whatever was saved before
# Between slices of this size, other connections run.
SLICE_BYTES = 16 * 1024


class TooAlike(Malformed):
    """An answer that would take too long to search."""

    def __init__(self) -> None:
        super().__init__("it takes too long to look for secrets in it")


def slices(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), SLICE_BYTES):
        yield data[at : at + SLICE_BYTES]


class WorkBudget:
    """The budget of one connection. Each byte adds to it; unused budget is kept up to a limit."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _STEPS_AT_MOST

    def gain(self, count: int) -> None:
        """Add the budget for received bytes."""
        self._left = min(_STEPS_AT_MOST, self._left + _STEPS_PER_BYTE * count)

    def spend(self, steps: int) -> None:
        """Use steps. Raises TooAlike when there are none left."""
        self._left -= steps
        if self._left < 0:
            raise TooAlike
