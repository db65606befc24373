"""Locks by name, for work on things that have names: one at a time for each, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class NamedLocks:
    """A lock for each name that somebody holds or waits for."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._users: dict[Hashable, int] = {}

    def __repr__(self) -> str:
        return f"<NamedLocks, {len(self._locks)} in use>"

    @asynccontextmanager
    async def held(self, name: Hashable) -> AsyncIterator[None]:
        """Inside, nobody else holds this name. Those that wait come in the order in which they asked."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            # Counted, because a lock that was released for somebody who waits does not look locked for a moment: a
            # newcomer would make another one and come in beside them.
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]
