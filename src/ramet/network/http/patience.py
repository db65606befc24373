"""How long somebody is waited for: one timer for a connection, which costs next to nothing to be set anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

IDLE_SECONDS = 120.0  # between two requests
HEAD_SECONDS = 30.0  # from the first byte of a head to its last
ANSWER_SECONDS = 900.0  # of silence, from either side, until an answer has come whole: some think for long
GONE_SECONDS = 30.0  # for the answer to somebody who has ended its half of the connection, and may have left
LINGER_SECONDS = 5.0  # for the rest of a request that was refused
_LOOK_SECONDS = 15.0


class Patience:
    """Calls ``end`` when the time that was given last is over. More can be given then, for what is left to do."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.over = False  # once, at least
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + IDLE_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def give(self, seconds: float) -> None:
        self._until = self._loop.time() + seconds
        if self._timer is None:
            self._look()

    def shorten(self, seconds: float) -> None:
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
