"""The sockets of one sandbox that the proxy listens on, and the tasks that serve its clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping

from ramet.network.listeners.clients import serve_proxy_client, serve_raw_client
from ramet.network.listeners.dns_service import DnsService
from ramet.network.listeners.tunnels import AuthorityNow
from ramet.network.peers import SandboxPeer
from ramet.network.streams.socket_stream import SocketStream

PROXY, TRANSPARENT, NAMES = "proxy", "transparent", "names"
# We accept connections one by one, between other work. A program that finds the queue full retries after a second.
_BACKLOG = 1024

Serve = Callable[[SocketStream, SandboxPeer, AuthorityNow], Awaitable[None]]
Failed = Callable[[BaseException], None]


class PodListeners:
    """Owns the listeners and the clients' connections. Unexpected errors go to ``failed``."""

    def __init__(self, peer: SandboxPeer, authority: AuthorityNow, failed: Failed) -> None:
        self.peer = peer
        self._authority = authority
        self._failed = failed
        self._servers: list[asyncio.Server] = []
        self._names: DnsService | None = None
        self._clients: dict[asyncio.Task[None], SocketStream] = {}
        self._closed = False

    async def open(self, listeners: Mapping[str, socket.socket]) -> None:
        """Start to listen."""
        loop = asyncio.get_running_loop()
        serving: dict[str, Serve] = {PROXY: serve_proxy_client, TRANSPARENT: serve_raw_client}
        for what, serve in serving.items():
            # The sandbox may be closed during each await here; then `close` runs again at the end.
            if what in listeners and not self._closed:
                made = await loop.create_server(self._stream_for(serve), sock=listeners[what], backlog=_BACKLOG)
                self._servers.append(made)
        if NAMES in listeners and not self._closed:
            raw = TRANSPARENT in listeners
            _, self._names = await loop.create_datagram_endpoint(
                lambda: DnsService(self.peer, raw, self._failed), sock=listeners[NAMES]
            )
            # The loop has set SO_REUSEADDR. For UDP that would let code in the pod bind the same port, and answer
            # instead of us.
            listeners[NAMES].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        if self._closed:
            self.close()

    def close(self) -> None:
        """Stop listening and reset all connections."""
        self._closed = True
        for server in self._servers:
            server.close()
        if self._names is not None:
            self._names.close()
        self.peer.close()
        # A copy, because aborting may finish tasks. `peer.close` has ended the connections to servers in an orderly
        # way.
        for task, client in tuple(self._clients.items()):
            client.abort()
            task.cancel()

    def _stream_for(self, serve: Serve) -> Callable[[], SocketStream]:
        return lambda: SocketStream(self.peer.limits, lambda client: self._come(client, serve))

    def _come(self, client: SocketStream, serve: Serve) -> None:
        if self._closed or not self.peer.limits.begin_client():
            return client.abort()
        # Counted until the socket is really closed, which may be long after the task has ended: a peer may not read the
        # rest.
        self.peer.limits.take()
        client.on_lost = self.peer.limits.give_back
        task = asyncio.get_running_loop().create_task(self._serve(client, serve))
        self._clients[task] = client
        task.add_done_callback(self._done)

    async def _serve(self, client: SocketStream, serve: Serve) -> None:
        try:
            await serve(client, self.peer, self._authority)
        except (ConnectionError, TimeoutError):
            client.abort()  # the peer is gone, or too slow: nothing to report

    def _done(self, task: asyncio.Task[None]) -> None:
        client = self._clients.pop(task)
        self.peer.limits.end_client()
        if not task.cancelled() and (problem := task.exception()) is not None:
            client.abort()
            self._failed(problem)
        client.close()
