"""Which processes a process was copied from, as far as they live.

Each page that a copy shares knows all mappings that may share it, and each copy adds its own to the lists of its
ancestors: with all of them alive, the copy of generation 100 takes several times as long as that of generation 1.
"""

from __future__ import annotations


class Ancestry:
    """A process, and the one that it was copied from. A process that was poured from an image has no ancestor."""

    __slots__ = ("_above", "_alive")

    def __init__(self, above: Ancestry | None = None) -> None:
        self._above = above
        self._alive = True

    def __repr__(self) -> str:
        return f"<Ancestry, {self.living} living ancestors>"

    @property
    def above(self) -> Ancestry | None:
        """The nearest ancestor that lives. Those that have ended are forgotten on the way."""
        while self._above is not None and not self._above._alive:
            self._above = self._above._above
        return self._above

    @property
    def living(self) -> int:
        """How many ancestors live."""
        count, each = 0, self.above
        while each is not None:
            count, each = count + 1, each.above
        return count

    def ended(self) -> None:
        self._alive = False
