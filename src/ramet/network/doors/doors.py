"""The sockets of one sandbox that the proxy listens on, and the tasks that serve who comes there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping

from ramet.network.doors.clients import serve_proxy_client, serve_raw_client
from ramet.network.doors.naming_service import NamingService
from ramet.network.doors.tunnels import AuthorityNow
from ramet.network.guests import Guest
from ramet.network.streams.socket_stream import SocketStream

PROXY, TRANSPARENT, NAMES = "proxy", "transparent", "names"
# Connections are accepted one by one, in between others; a program that finds the queue full waits for a second.
_BACKLOG = 1024

Serve = Callable[[SocketStream, Guest, AuthorityNow], Awaitable[None]]
Failed = Callable[[BaseException], None]


class Doors:
    """Owns the listeners and the clients' connections. ``failed`` is told of errors that should not be there."""

    def __init__(self, guest: Guest, authority: AuthorityNow, failed: Failed) -> None:
        self.guest = guest
        self._authority = authority
        self._failed = failed
        self._servers: list[asyncio.Server] = []
        self._names: NamingService | None = None
        self._clients: dict[asyncio.Task[None], SocketStream] = {}
        self._closed = False

    async def open(self, listeners: Mapping[str, socket.socket]) -> None:
        loop = asyncio.get_running_loop()
        serving: dict[str, Serve] = {PROXY: serve_proxy_client, TRANSPARENT: serve_raw_client}
        for what, serve in serving.items():
            if what in listeners and not self._closed:
                made = await loop.create_server(self._stream_for(serve), sock=listeners[what], backlog=_BACKLOG)
                self._servers.append(made)
        if NAMES in listeners and not self._closed:
            raw = TRANSPARENT in listeners
            _, self._names = await loop.create_datagram_endpoint(
                lambda: NamingService(self.guest, raw, self._failed), sock=listeners[NAMES]
            )
            # The loop has set it: code in the pod could bind the port as well, and answer instead.
            listeners[NAMES].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        if self._closed:
            self.close()

    def close(self) -> None:
        """Nobody is listened to any more, and all connections are reset."""
        self._closed = True
        for server in self._servers:
            server.close()
        if self._names is not None:
            self._names.close()
        self.guest.close()
        for task, client in tuple(self._clients.items()):
            client.abort()
            task.cancel()

    def _stream_for(self, serve: Serve) -> Callable[[], SocketStream]:
        return lambda: SocketStream(self.guest.limits, lambda client: self._come(client, serve))

    def _come(self, client: SocketStream, serve: Serve) -> None:
        if self._closed or not self.guest.limits.begin_client():
            return client.abort()
        self.guest.limits.take()
        client.on_lost = self.guest.limits.give_back
        task = asyncio.get_running_loop().create_task(self._serve(client, serve))
        self._clients[task] = client
        task.add_done_callback(self._done)

    async def _serve(self, client: SocketStream, serve: Serve) -> None:
        try:
            await serve(client, self.guest, self._authority)
        except (ConnectionError, TimeoutError):
            client.abort()

    def _done(self, task: asyncio.Task[None]) -> None:
        client = self._clients.pop(task)
        self.guest.limits.end_client()
        if not task.cancelled() and (problem := task.exception()) is not None:
            client.abort()
            self._failed(problem)
        client.close()
