"""Whose session a request belongs to, and when sessions end.

Over stdio the process is the session. Over HTTP there are two kinds of clients:

    2025-11-25 and before   a handshake gives the client an id, which it sends with every request: a session for each
                            id. It ends when the client says so (DELETE), or when no request was under way for a while.
    2026-07-28 and later    requests stand alone. The id of a sandbox, 128 random bits, is what makes later calls
                            belong to earlier ones: a call without one begins a session, a call with one goes on in
                            the session that sandbox is in. It ends when it was not used for a while.

A client that speaks both is offered the first: it has a default sandbox, and says when it goes.

A session of one key is not there for another.
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
from ramet.mcp.sessions import SandboxSettings, Session

# Sessions without a handshake that are there at once. Clients that never name a sandbox make one with each call.
STANDING_ALONE = 256
_CLOSE_SECONDS = 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, as far as the transport knows."""

    owner: str = ""  # which key
    session_id: str | None = None  # of the handshake


class Keeping(Protocol):
    """Finds the session of a request, and keeps it while the request is worked on."""

    def session(self, caller: Caller, named: str | None) -> AbstractAsyncContextManager[Session]:
        """``named`` is the id of any sandbox or snapshot that is in the request."""
        ...


class OneSession:
    """Of a process that serves one client."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._session = Session(settings)

    @asynccontextmanager
    async def session(self, caller: Caller, named: str | None) -> AsyncIterator[Session]:
        yield self._session

    @asynccontextmanager
    async def running(self) -> AsyncIterator[OneSession]:
        try:
            yield self
        finally:
            await self.close()

    async def close(self) -> None:
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await self._session.close()


class ManySessions:
    """Of a process that serves many clients over HTTP."""

    def __init__(self, settings: SandboxSettings, idle_seconds: float) -> None:
        self._settings = settings
        self._idle_seconds = idle_seconds
        self._by_handshake: dict[str, Session] = {}
        self._standing_alone: list[Session] = []
        self._requests: Counter[str] = Counter()  # under way, by handshake
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ManySessions {len(self._by_handshake)} with a handshake, {len(self._standing_alone)} without>"

    @asynccontextmanager
    async def session(self, caller: Caller, named: str | None) -> AsyncIterator[Session]:
        if caller.session_id is not None:
            # The transport knows this id, and that it is this key's. Its requests are counted by `request`.
            yield self._by_handshake.setdefault(caller.session_id, Session(self._settings, caller.owner))
            return
        session = self._find(caller.owner, named)
        session.holders += 1
        try:
            yield session
        finally:
            session.holders -= 1
            session.used_at = self._now()
            if session.holders == 0 and session.is_empty:
                self._forget(session)
            self._changed.set()

    def _find(self, owner: str, named: str | None) -> Session:
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
        session = Session(self._settings, owner, found_by_id=True)
        self._standing_alone.append(session)
        return session

    @contextmanager
    def request(self, session_id: str) -> Iterator[None]:
        """An HTTP request under way keeps its session."""
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
        """The client has ended its session."""
        session = self._by_handshake.pop(session_id, None)
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ManySessions]:
        """Closes idle sessions meanwhile, and all at the end."""
        watching = asyncio.create_task(self._close_idle_ones())
        try:
            yield self
        finally:
            watching.cancel()
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                sessions = [*self._by_handshake.values(), *self._standing_alone]
                self._by_handshake.clear()
                self._standing_alone.clear()
                await asyncio.gather(*(session.close() for session in sessions))

    async def _close_idle_ones(self) -> None:
        while True:
            due = [session.used_at + self._idle_seconds for session in self._unused()]
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), min(due) - self._now() if due else None)
            except TimeoutError:
                pass
            for session in self._unused():
                if session.used_at + self._idle_seconds <= self._now():
                    self._forget(session)
                    try:
                        await session.close()
                    except Exception:
                        _log.exception("a session did not close")  # the others are to be closed all the same

    def _unused(self) -> list[Session]:
        alone = [session for session in self._standing_alone if session.holders == 0]
        return alone + [one for name, one in self._by_handshake.items() if name not in self._requests]

    def _forget(self, session: Session) -> None:
        self._standing_alone = [one for one in self._standing_alone if one is not session]
        self._by_handshake = {name: one for name, one in self._by_handshake.items() if one is not session}

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
