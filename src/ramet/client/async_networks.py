"""The network of a sandbox, and what it shows to the host, for programs with an event loop."""

from __future__ import annotations

from collections.abc import Awaitable
from types import TracebackType
from typing import TYPE_CHECKING

from ramet.client import asynchronous
from ramet.client.handle import Handle, behind
from ramet.client.network_operations import Connection, NetworkState
from ramet.errors import EngineClosed, EngineLost, SandboxClosed

if TYPE_CHECKING:
    from ramet.client.async_sandbox import AsyncSandbox


class AsyncSandboxNetwork:
    """The network of a sandbox that was made with ``network=``: read and change its rules while it runs."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    def __repr__(self) -> str:
        return f"<AsyncSandboxNetwork of {self._sandbox!r}>"

    async def log(self) -> list[Connection]:
        """The last 10 000 connections that code tried to make, oldest first; see ``dropped``."""
        return (await self._look()).log

    @property
    def dropped(self) -> Awaitable[int]:
        """How many were tried that are not in the log, to be awaited: older ones, and what was refused too quickly."""
        return self._dropped()

    @property
    def rules(self) -> Awaitable[tuple[str, ...]]:
        """What is allowed now, to be awaited; ``"open"`` is among them where all that is public is."""
        return self._rules()

    @property
    def denied(self) -> Awaitable[tuple[str, ...]]:
        """What is refused now, whatever else is allowed; to be awaited."""
        return self._denied()

    async def allow(self, *rules: str) -> None:
        """Allow these rules from now on, even if the same rule was denied before."""
        handle = self._sandbox._created()
        await asynchronous.perform(handle.engine, handle.open().change_network(allow=rules))

    async def deny(self, *rules: str) -> None:
        """Refuse these rules from now on, whatever else is allowed. Closes open connections to these hosts."""
        handle = self._sandbox._created()
        await asynchronous.perform(handle.engine, handle.open().change_network(deny=rules))

    async def _look(self) -> NetworkState:
        handle = self._sandbox._created()
        return await asynchronous.perform(handle.engine, handle.open().network())

    async def _rules(self) -> tuple[str, ...]:
        return (await self._look()).rules

    async def _dropped(self) -> int:
        return (await self._look()).dropped

    async def _denied(self) -> tuple[str, ...]:
        return (await self._look()).denied


class AsyncExposed:
    """A port of a sandbox that the host can connect to, at ``url``, until this or the sandbox is closed."""

    def __init__(self, handle: Handle, port: int, url: str) -> None:
        self._handle = handle
        self.port = port
        self.url = url

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"<AsyncExposed {self.port} of {self._handle.id} at {self.url}>"

    async def close(self) -> None:
        """Withdraw the URL and close the connections through it. Closing it twice, or after its sandbox, is allowed."""
        try:
            await asynchronous.perform(self._handle.engine, self._handle.open().unexpose(self.port))
        except (SandboxClosed, EngineLost, EngineClosed):
            pass  # it was closed with its sandbox

    async def __aenter__(self) -> AsyncExposed:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with behind(error):
            await self.close()
