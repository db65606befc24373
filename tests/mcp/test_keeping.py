"""Bounds of sessions, and what happens to what is made while a session ends."""

from __future__ import annotations

import asyncio

import pytest

from ramet import AsyncSandbox, InvalidArgument, LimitReached, SandboxClosed
from ramet.doors.mcp import session_store, sessions
from ramet.doors.mcp.session_store import ManySessions, SessionCaller
from ramet.doors.mcp.sessions import McpSession, SandboxSettings


async def test_sessions_without_a_handshake_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_store, "STANDING_ALONE", 1)
    async with ManySessions(SandboxSettings(), idle_seconds=60).running() as many:
        async with many.session(SessionCaller(), None):
            with pytest.raises(LimitReached):
                async with many.session(SessionCaller(), None):
                    pass
        async with many.session(SessionCaller(), None):  # one that has nothing is not kept
            pass


async def test_a_session_is_found_by_what_is_in_it_and_by_its_key_only() -> None:
    async with ManySessions(SandboxSettings(), idle_seconds=60).running() as many:
        async with many.session(SessionCaller("one"), None) as session:
            sandbox = await session.sandbox(None)
            snapshot = await session.snapshot(sandbox)
        for some_id in (sandbox.id, snapshot.id):
            async with many.session(SessionCaller("one"), some_id) as found:
                assert found is session
            with pytest.raises(InvalidArgument):
                async with many.session(SessionCaller("another"), some_id):
                    pass


async def test_a_session_has_so_many_sandboxes_and_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SANDBOXES", 2)
    monkeypatch.setattr(sessions, "SNAPSHOTS", 1)
    session = McpSession(SandboxSettings())
    try:
        sandbox = await session.sandbox(None)
        with pytest.raises(LimitReached, match="may have at most 2"):
            await session.fork(sandbox, 2, reseed=False)
        await session.fork(sandbox, 1, reseed=False)
        with pytest.raises(LimitReached):
            await session.create()
        await session.snapshot(sandbox)
        with pytest.raises(LimitReached, match="1 snapshots"):
            await session.snapshot(sandbox)
    finally:
        await session.close()


async def test_a_sandbox_that_is_made_while_its_session_ends_is_closed() -> None:
    before = {row.id for row in await AsyncSandbox.list_all()}
    session = McpSession(SandboxSettings())
    making = asyncio.create_task(session.sandbox(None))
    await asyncio.sleep(0)  # it has begun
    await session.close()
    with pytest.raises(SandboxClosed):
        await making
    assert {row.id for row in await AsyncSandbox.list_all()} == before


async def test_calls_at_once_share_one_default_sandbox() -> None:
    session = McpSession(SandboxSettings())
    made = await asyncio.gather(*(session.sandbox(None) for _ in range(5)))
    assert len({one.id for one in made}) == 1
    await session.close()
