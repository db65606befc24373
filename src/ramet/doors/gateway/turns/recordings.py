"""An answer as it is made, for any number of readers: each reads from the beginning, at its own pace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ramet.doors.gateway.errors import ApiError


class Recording:
    """The events of one attempt at an answer. One task writes them; any number of readers follow."""

    def __init__(self, events: Iterable[dict[str, Any]] = ()) -> None:
        self.events: list[dict[str, Any]] = list(events)
        self.over = False
        self.error: ApiError | None = None
        self._news = asyncio.Event()

    def add(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self._tell()

    def end(self, error: ApiError | None = None) -> None:
        if not self.over:
            self.over, self.error = True, error
            self._tell()

    async def beyond(self, seen: int) -> None:
        """Wait until there are more events than this, or the recording has ended."""
        while len(self.events) <= seen and not self.over:
            await self._news.wait()

    async def ended(self) -> None:
        while not self.over:
            await self._news.wait()

    def _tell(self) -> None:
        # A new event each time: clearing the old one could hide it from a reader that has not woken up yet.
        news, self._news = self._news, asyncio.Event()
        news.set()
