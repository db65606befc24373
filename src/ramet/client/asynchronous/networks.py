"""The network of a sandbox, and the ports that it shows to the host, for programs on an event loop."""

from __future__ import annotations

from collections.abc import Awaitable
from types import TracebackType

from ramet.client.drivers import asynchronous
from ramet.client.drivers.async_bases import AsyncNetworkBase
from ramet.client.handle import SandboxHandle, closing_after
from ramet.client.operations import network
from ramet.client.operations.network import Connection, NetworkState
from ramet.errors import EngineClosed, EngineLost, SandboxClosed


class AsyncSandboxNetwork(AsyncNetworkBase):
    """The network of a sandbox that was made with ``network=``: read and change its rules while it runs.

    Every member raises InvalidArgument for a sandbox that was made without a network.
    """

    async def log(self) -> list[Connection]:
        """The last 10 000 connections that code tried to make, oldest first; see ``dropped``."""
        return (await self._state()).log

    @property
    def dropped(self) -> Awaitable[int]:
        """Number of attempted connections that are not in the log: older ones, and refusals that came too fast.

        To be awaited.
        """
        return self._dropped()

    @property
    def rules(self) -> Awaitable[tuple[str, ...]]:
        """The rules that allow connections now; they include ``"open"`` if every public host is allowed.

        To be awaited.
        """
        return self._rules()

    @property
    def denied(self) -> Awaitable[tuple[str, ...]]:
        """The rules that refuse connections now; they win over rules that allow.

        To be awaited.
        """
        return self._denied()

    async def allow(self, *rules: str) -> None:
        """Allow these rules from now on, even if the same rule was denied before.

        Raises InvalidArgument for a rule that is wrong, or if there is none.
        """
        handle = self._owner._created()
        await asynchronous.perform(handle.engine, network.change_rules(handle.open(), allow=rules))

    async def deny(self, *rules: str) -> None:
        """Refuse these rules from now on, whatever else is allowed. Closes open connections to these hosts.

        Raises InvalidArgument for a rule that is wrong, or if there is none.
        """
        handle = self._owner._created()
        await asynchronous.perform(handle.engine, network.change_rules(handle.open(), deny=rules))

    async def _state(self) -> NetworkState:
        handle = self._owner._created()
        return await asynchronous.perform(handle.engine, network.network_state(handle.open()))

    async def _rules(self) -> tuple[str, ...]:
        return (await self._state()).rules

    async def _dropped(self) -> int:
        return (await self._state()).dropped

    async def _denied(self) -> tuple[str, ...]:
        return (await self._state()).denied


class AsyncExposed:
    """A port of a sandbox that the host can connect to, at ``url``, until this or the sandbox is closed."""

    def __init__(self, handle: SandboxHandle, port: int, url: str) -> None:
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
            await asynchronous.perform(self._handle.engine, network.unexpose(self._handle.open(), self.port))
        except (SandboxClosed, EngineLost, EngineClosed):
            pass  # it was closed with its sandbox

    async def __aenter__(self) -> AsyncExposed:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with closing_after(error):
            await self.close()
