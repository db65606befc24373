"""Ports of a sandbox on the host's loopback: who connects there is connected to a server inside.

A socket that was made in a pod stays in the pod's network wherever it is used. The engine has such sockets made and
hands them over, a few ahead; each is used for one connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence

from ramet.network.doors.relaying import relay
from ramet.network.limits import piece_bytes_of
from ramet.network.streams.socket_stream import SocketStream
from ramet.network.streams.stream import PIECE_BYTES

_FEW = 2
_CONNECTIONS_AT_ONCE = 256
_SOCKET_SECONDS = 10.0
_LOOPBACK = "127.0.0.1"

Failed = Callable[[BaseException], None]


class Exposure:
    """One port. Owns the listener on the host, the sockets that wait to be used, and all connections."""

    def __init__(self, port: int, listener: socket.socket, ask_for_more: Callable[[], None], failed: Failed) -> None:
        self.piece_bytes = PIECE_BYTES
        self._port = port
        self._listener = listener
        self._ask_for_more = ask_for_more
        self._failed = failed
        self._asked = False
        self._sockets: deque[socket.socket] = deque()
        self._waiting: deque[asyncio.Future[socket.socket]] = deque()
        self._open: dict[asyncio.Task[None], SocketStream] = {}
        self._server: asyncio.Server | None = None

    async def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: SocketStream(self, self._come), sock=self._listener)

    def add(self, descriptors: Sequence[int]) -> None:
        self._asked = False
        for descriptor in descriptors:
            end = socket.socket(fileno=descriptor)
            end.setblocking(False)
            while self._waiting and (waiter := self._waiting.popleft()):
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
            async with asyncio.timeout(_SOCKET_SECONDS):
                inside = await self._next_socket()
        except TimeoutError:
            return client.abort()
        try:
            await loop.sock_connect(inside, (_LOOPBACK, self._port))
            _, server = await loop.create_connection(lambda: SocketStream(self), sock=inside)
        except OSError:  # nobody listens there
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
