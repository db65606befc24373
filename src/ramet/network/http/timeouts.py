"""Timeouts of one connection: a single timer that is cheap to extend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

IDLE_SECONDS = 120.0  # between two requests
HEAD_SECONDS = 30.0  # from the first byte of a head to its last
ANSWER_SECONDS = 900.0  # silence of either side until the answer is complete; some servers compute for long
GONE_SECONDS = 30.0  # for the answer to a client that has shut down its sending side, and may have left
LINGER_SECONDS = 5.0  # for the rest of a refused request
# The timer fires at least this often and looks whether the deadline has moved. Extending a deadline is then one
# assignment, instead of a new timer for each piece of a body.
_LOOK_SECONDS = 15.0


class ConnectionTimeout:
    """Calls ``end`` when the current deadline passes. A new deadline can then be set for what is left to do."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.over = False  # whether a deadline has ever passed
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + IDLE_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def give(self, seconds: float) -> None:
        """Set the deadline to this many seconds from now."""
        self._until = self._loop.time() + seconds
        if self._timer is None:
            self._look()

    def shorten(self, seconds: float) -> None:
        """Move the deadline forward. Takes effect when the timer next fires."""
        self._until = min(self._until, self._loop.time() + seconds)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if now < self._until:
            self._timer = self._loop.call_at(min(self._until, now + _LOOK_SECONDS), self._look)
        else:
            self._timer = None
            self.over = True
            self._end()
