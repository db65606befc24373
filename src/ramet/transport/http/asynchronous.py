"""Carries out calls over HTTP on the running event loop.

Sockets are not tied to a loop: a program may use one loop after another, and connections stay idle when one ends.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TypeVar

from ramet.protocol.frames import Frame
from ramet.transport.http import steps
from ramet.transport.http.call import HttpCall
from ramet.transport.http.janitor import Janitor
from ramet.transport.http.server import Server
from ramet.transport.http.sockets import prepare, something_to_read
from ramet.transport.http.steps import Dial, Pause, SocketWait, Step, Steps, Wait

Returned = TypeVar("Returned")


class AsyncHttpLink:
    """One call."""

    __slots__ = ("_call", "_janitor", "_loop", "_server")

    def __init__(self, server: Server, janitor: Janitor) -> None:
        self._server = server
        self._janitor = janitor
        self._call = HttpCall(server)
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        todo = self._call.send(data)
        if todo is not None:
            await self._carry_out(todo)

    async def receive(self) -> Frame:
        return await self._carry_out(self._call.receive())

    def taken(self) -> None:
        self._call.taken()

    def leave(self) -> None:
        errand = self._call.leave()
        if errand is not None:
            # In a thread, because the loop may be about to end, and every task with it.
            self._janitor.run_errand(self._server, errand)

    async def _carry_out(self, todo: Steps[Returned]) -> Returned:
        try:
            step = next(todo)
            while True:
                try:
                    given = await self._do(step)
                except OSError as error:
                    step = todo.throw(error)
                else:
                    step = todo.send(given)
        except StopIteration as stop:
            returned: Returned = stop.value
            return returned
        finally:
            # If the task was cancelled, the generator is suspended at a step; closing it runs its cleanup now.
            todo.close()

    async def _do(self, step: Step) -> object:
        if isinstance(step, int):
            return await self._receive(step)
        if isinstance(step, bytes):
            return await self._send(memoryview(step))
        if isinstance(step, SocketWait):
            return await self._send(step.data, watch=True)
        if isinstance(step, Dial):
            async with asyncio.timeout(steps.CONNECT_SECONDS):
                return await self._dial(step)
        if isinstance(step, Wait):
            await asyncio.wrap_future(step.future)
            return None
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        raise TypeError(step)

    @property
    def _socket(self) -> socket.socket:
        assert self._call.connection is not None
        return self._call.connection.sock

    async def _dial(self, step: Dial) -> socket.socket:
        failed: OSError = OSError(f"{step.host} has no address")
        for family, kind, protocol, _, address in await self._loop.getaddrinfo(
            step.host, step.port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                prepare(sock)
                await self._loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failed = error
            except BaseException:
                # Cancelled, or out of time: no caller will ever see this socket.
                sock.close()
                raise
            else:
                return sock
        raise failed

    async def _send(self, view: memoryview, watch: bool = False) -> int:
        """Send all of it; with ``watch``, stop as soon as something can be read. Return how many bytes were sent."""
        sock = self._socket
        sent = 0
        while sent < len(view):
            # Checked before each write: a server that refuses the request answers early, and the rest need not be sent.
            if watch and something_to_read(sock):
                break
            try:
                sent += sock.send(view[sent:] if sent else view)
            except BlockingIOError:
                await self._wait(sock, read=watch, write=True)
        return sent

    async def _receive(self, count: int) -> bytes:
        sock = self._socket
        while True:
            try:
                return sock.recv(count)
            except BlockingIOError:
                await self._wait(sock, read=True, write=False)

    async def _wait(self, sock: socket.socket, *, read: bool, write: bool) -> None:
        """Wait until the socket is ready.

        Raise TimeoutError after SILENCE_SECONDS. Reads nothing, so cancelling loses no data.
        """
        loop = self._loop
        ready: asyncio.Future[None] = loop.create_future()
        silence = loop.call_later(steps.SILENCE_SECONDS, _end, ready, TimeoutError())
        if read:
            loop.add_reader(sock, _end, ready)
        if write:
            loop.add_writer(sock, _end, ready)
        try:
            await ready
        finally:
            silence.cancel()
            if read:
                loop.remove_reader(sock)
            if write:
                loop.remove_writer(sock)


def _end(ready: asyncio.Future[None], error: OSError | None = None) -> None:
    # The socket and the timer may both fire in one turn of the loop.
    if ready.done():
        return
    if error is None:
        ready.set_result(None)
    else:
        ready.set_exception(error)
