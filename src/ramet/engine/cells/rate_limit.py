"""Limits the rate of one guest, so that the engine has time for the others."""

from __future__ import annotations

from time import monotonic


class RateLimit:
    """A token bucket: allows ``at_once``, and after that ``per_second``."""

    def __init__(self, at_once: int, per_second: int) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._left: float = at_once
        self._looked = monotonic()

    def spend(self, amount: int) -> float:
        """Spend an amount. Returns the seconds to wait before the next one, nearly always 0."""
        self._left -= amount
        if self._left >= 0:
            return 0.0  # the fast path, taken for every frame, does not read the clock
        now = monotonic()
        self._left = min(self._at_once, self._left + (now - self._looked) * self._per_second)
        self._looked = now
        return max(0.0, -self._left / self._per_second)
