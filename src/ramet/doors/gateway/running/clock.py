"""Measures how long a cell has run, without the time in which it waits for its client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class RunningTime:
    """A clock that can be paused, and calls back once at its limit. Belongs to one cell."""

    def __init__(self, limit_seconds: float, reached: Callable[[], None]) -> None:
        self._left_seconds = limit_seconds
        self._reached = reached
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def go(self) -> None:
        """Start, or continue after ``hold``."""
        if self._timer is None and not self._over:
            loop = asyncio.get_running_loop()
            self._since = loop.time()
            self._timer = loop.call_later(max(self._left_seconds, 0.0), self._end)

    def hold(self) -> None:
        """Pause until the next ``go``."""
        if self._timer is not None and self._since is not None:
            self._timer.cancel()
            self._timer = None
            self._left_seconds -= asyncio.get_running_loop().time() - self._since

    def stop(self) -> None:
        """Stop for good, without calling back."""
        self.hold()
        self._over = True

    def _end(self) -> None:
        self._timer = None
        self._over = True
        self._reached()
