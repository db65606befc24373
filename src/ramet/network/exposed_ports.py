"""Ports of a sandbox on the host's loopback: a client that connects there is connected to a server in the sandbox.

A socket made in a pod stays in the pod's network, whichever process uses it. The engine has such sockets made and sends
them here, a few ahead of need. Each is used for one connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence

from ramet.network.limits import piece_bytes_of
from ramet.network.listeners.relay import relay
from ramet.network.streams.socket_stream import SocketStream
from ramet.network.streams.stream import PIECE_BYTES

_FEW = 2  # ask for more sockets when no more than this many are left
_CONNECTIONS_AT_ONCE = 256
_SOCKET_SECONDS = 10.0
_LOOPBACK = "127.0.0.1"

Failed = Callable[[BaseException], None]


class ProxyExposure:
    """One exposed port. Owns the listener on the host, the sockets for future connections, and all open connections."""

    def __init__(self, port: int, listener: socket.socket, ask_for_more: Callable[[], None], failed: Failed) -> None:
        self.piece_bytes = PIECE_BYTES
        self._port = port
        self._listener = listener
        self._ask_for_more = ask_for_more
        self._failed = failed
        # At most one request to the engine at a time; each is answered with several sockets.
        self._asked = False
        self._sockets: deque[socket.socket] = deque()
        self._waiting: deque[asyncio.Future[socket.socket]] = deque()
        self._open: dict[asyncio.Task[None], SocketStream] = {}
        self._server: asyncio.Server | None = None

    async def begin(self) -> None:
        """Start to accept connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: SocketStream(self, self._come), sock=self._listener)

    def add(self, descriptors: Sequence[int]) -> None:
        """Take sockets from the engine: first for connections that wait, the rest for later ones."""
        self._asked = False
        for descriptor in descriptors:
            end = socket.socket(fileno=descriptor)
            end.setblocking(False)
            while self._waiting and (waiter := self._waiting.popleft()):
                # A waiter that timed out is still in the queue.
                if not waiter.done():
                    waiter.set_result(end)
                    break
            else:
                self._sockets.append(end)
        self._ask_early()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task, client in self._open.items():
            client.abort()
            task.cancel()
        while self._sockets:
            self._sockets.popleft().close()

    def _come(self, client: SocketStream) -> None:
        if len(self._open) >= _CONNECTIONS_AT_ONCE:
            return client.abort()
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self._open[task] = client
        self._resize()
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task).close()
        self._resize()
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._failed(problem)

    async def _serve(self, client: SocketStream) -> None:
        loop = asyncio.get_running_loop()
        try:
            # The engine may be slow to answer, or the pod may have ended.
            async with asyncio.timeout(_SOCKET_SECONDS):
                inside = await self._next_socket()
        except TimeoutError:
            return client.abort()
        try:
            # The socket was made in the pod, so this is the pod's loopback and not the host's.
            await loop.sock_connect(inside, (_LOOPBACK, self._port))
            _, server = await loop.create_connection(lambda: SocketStream(self), sock=inside)
        except OSError:  # nothing listens on that port
            inside.close()
            return client.abort()
        except BaseException:
            inside.close()
            raise
        try:
            await relay(client, server)
        finally:
            server.abort()

    async def _next_socket(self) -> socket.socket:
        if not self._sockets:
            waiter: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            self._ask_early()
            try:
                return await waiter
            except asyncio.CancelledError:
                # The socket was assigned in the same turn of the loop in which we were cancelled: keep it for the next
                # one.
                if waiter.done() and not waiter.cancelled():
                    self._sockets.append(waiter.result())
                raise
        taken = self._sockets.popleft()
        self._ask_early()
        return taken

    def _ask_early(self) -> None:
        if not self._asked and len(self._sockets) <= _FEW:
            self._asked = True
            self._ask_for_more()

    def _resize(self) -> None:
        self.piece_bytes = piece_bytes_of(len(self._open))
