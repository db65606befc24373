"""Finds the session of each request, and ends sessions.

Over stdio the process is the session. Over HTTP there are two kinds of clients:

    2025-11-25 and before   A handshake gives the client an id, which it sends with every request. Each id has a
                            session, which ends when the client says so (DELETE) or has sent no request for a while.
    2026-07-28 and later    Each request stands alone. A call without the id of a sandbox begins a session; a call with
                            one continues in the session of that sandbox. Ids are 128 random bits, so nobody guesses
                            one. The session ends when it was not used for a while.

A client that speaks both is offered the first: then it has a default sandbox and says when it leaves.

Sessions belong to a key: a request with another key does not find them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import anyio

from ramet import InvalidArgument, LimitReached
from ramet.doors.mcp.sessions import McpSession, SandboxSettings

# The most sessions without a handshake at once. A client that never names a sandbox makes one with each call.
STANDING_ALONE = 256
_CLOSE_SECONDS = 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionCaller:
    """The sender of a request, as far as the transport knows it."""

    owner: str = ""  # names the key
    session_id: str | None = None  # from the handshake


class SessionStore(Protocol):
    """Finds the session of a request, and keeps it open while the request is in progress."""

    def session(self, caller: SessionCaller, named: str | None) -> AbstractAsyncContextManager[McpSession]:
        """The session of a request. ``named``: the id of a sandbox or snapshot in the request, if it has one.

        Raises InvalidArgument if nothing has this id, LimitReached if there are too many sessions.
        """
        ...


class OneSession:
    """The session of a process that serves one client."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._session = McpSession(settings)

    @asynccontextmanager
    async def session(self, caller: SessionCaller, named: str | None) -> AsyncIterator[McpSession]:
        yield self._session

    @asynccontextmanager
    async def running(self) -> AsyncIterator[OneSession]:
        try:
            yield self
        finally:
            await self.close()

    async def close(self) -> None:
        # Shielded: the task group of the server is cancelled when the client leaves, and with it would be this close.
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await self._session.close()


class ManySessions:
    """The sessions of a process that serves many clients over HTTP."""

    def __init__(self, settings: SandboxSettings, idle_seconds: float) -> None:
        self._settings = settings
        self._idle_seconds = idle_seconds
        self._by_handshake: dict[str, McpSession] = {}
        self._standing_alone: list[McpSession] = []
        self._requests: Counter[str] = Counter()  # requests in progress, by the session id of the handshake
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ManySessions {len(self._by_handshake)} with a handshake, {len(self._standing_alone)} without>"

    @asynccontextmanager
    async def session(self, caller: SessionCaller, named: str | None) -> AsyncIterator[McpSession]:
        if caller.session_id is not None:
            # The transport has checked that this id exists and belongs to this key. `request` counts its requests.
            yield self._by_handshake.setdefault(caller.session_id, McpSession(self._settings, caller.owner))
            return
        session = self._find(caller.owner, named)
        session.holders += 1
        try:
            yield session
        finally:
            session.holders -= 1
            session.used_at = self._now()
            if session.holders == 0 and session.is_empty:  # nobody could name it: it has no sandbox
                self._forget(session)
            self._changed.set()  # wakes _close_idle_ones, which waits for the next session that is due

    def _find(self, owner: str, named: str | None) -> McpSession:
        if named is not None:
            for session in self._standing_alone:
                if named in session and session.owner == owner:
                    return session
            raise InvalidArgument(
                f"there is no sandbox {named!r}; it may have ended",
                hint="leave out `sandbox` to get a new one, whose id is in the answer",
            )
        if len(self._standing_alone) >= STANDING_ALONE:
            raise LimitReached(
                f"{STANDING_ALONE} clients have sandboxes", hint="continue in a sandbox you have: name it in `sandbox`"
            )
        session = McpSession(self._settings, owner, found_by_id=True)
        self._standing_alone.append(session)
        return session

    @contextmanager
    def request(self, session_id: str) -> Iterator[None]:
        """Keep the session open while an HTTP request of it is in progress."""
        self._requests[session_id] += 1
        try:
            yield
        finally:
            self._requests[session_id] -= 1
            if self._requests[session_id] == 0:
                del self._requests[session_id]
                if session_id in self._by_handshake:
                    self._by_handshake[session_id].used_at = self._now()
                    self._changed.set()

    async def end(self, session_id: str) -> None:
        """End the session, because its client asked for it."""
        session = self._by_handshake.pop(session_id, None)
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ManySessions]:
        """Close idle sessions while the block runs, and all sessions at its end."""
        watching = asyncio.create_task(self._close_idle_ones())
        try:
            yield self
        finally:
            watching.cancel()
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                # Emptied before the await: a request that is still in progress must not find a session that closes.
                sessions = [*self._by_handshake.values(), *self._standing_alone]
                self._by_handshake.clear()
                self._standing_alone.clear()
                await asyncio.gather(*(session.close() for session in sessions))

    async def _close_idle_ones(self) -> None:
        while True:
            # No await between the list and the clear: a session that becomes unused in between would not be noticed.
            due = [session.used_at + self._idle_seconds for session in self._unused()]
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), min(due) - self._now() if due else None)
            except TimeoutError:
                pass
            for session in self._unused():
                if session.used_at + self._idle_seconds <= self._now():
                    # Forgotten first: a request that arrives while it closes must not find it.
                    self._forget(session)
                    try:
                        await session.close()
                    except Exception:
                        _log.exception("a session did not close")  # go on: the others must be closed, too

    def _unused(self) -> list[McpSession]:
        alone = [session for session in self._standing_alone if session.holders == 0]
        return alone + [one for name, one in self._by_handshake.items() if name not in self._requests]

    def _forget(self, session: McpSession) -> None:
        self._standing_alone = [one for one in self._standing_alone if one is not session]
        self._by_handshake = {name: one for name, one in self._by_handshake.items() if one is not session}

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
