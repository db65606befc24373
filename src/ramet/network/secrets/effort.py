"""How much work answers may make for who looks for secrets in them.

One process looks for the secrets of all sandboxes. What takes long to look through is not passed on: a value that is
made of itself ("%%%%...") and an answer of the same would take hours. What an answer needs depends on its length; more
is needed only where nearly every byte begins what looks like a value for long, which values that cannot be guessed do
not do. So that an answer was refused for this tells nothing of such a value.
"""

from __future__ import annotations

from collections.abc import Iterator

from ramet.network.http.heads import Malformed

# A step is a comparison: some tenths of a microsecond.
_STEPS_PER_BYTE = 12
_STEPS_AT_MOST = 250_000  # at once, however much came before
# Whoever has more to look through lets others have their turn in between.
SLICE_BYTES = 16 * 1024


class TooAlike(Malformed):
    """An answer that is not looked through."""

    def __init__(self) -> None:
        super().__init__("it takes too long to look for secrets in it")


def slices(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), SLICE_BYTES):
        yield data[at : at + SLICE_BYTES]


class Effort:
    """Of one connection. Each byte gives some; what is not needed is kept up to a bound."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _STEPS_AT_MOST

    def gain(self, count: int) -> None:
        """So many bytes have come."""
        self._left = min(_STEPS_AT_MOST, self._left + _STEPS_PER_BYTE * count)

    def spend(self, steps: int) -> None:
        """Raises TooAlike."""
        self._left -= steps
        if self._left < 0:
            raise TooAlike
