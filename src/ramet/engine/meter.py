"""A rate that one guest is held to, so that the engine has time for the others."""

from __future__ import annotations

from time import monotonic


class Meter:
    """Allows an amount at once, and as much in each second after that as it is told."""

    def __init__(self, at_once: int, per_second: int) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._left: float = at_once
        self._looked = monotonic()

    def spend(self, amount: int) -> float:
        """How many seconds to wait before any more is spent; nearly always 0."""
        self._left -= amount
        if self._left >= 0:
            return 0.0  # every frame comes by here: no clock is asked
        now = monotonic()
        self._left = min(self._at_once, self._left + (now - self._looked) * self._per_second)
        self._looked = now
        return max(0.0, -self._left / self._per_second)
