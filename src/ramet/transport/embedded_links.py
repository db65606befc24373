"""Calls to the engine of this process, on a socket that carries one at a time.

A call that is given up closes its socket: the engine notices, and undoes what it can.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import suppress
from time import perf_counter
from typing import Protocol

from ramet.errors import ExecutionCancelled, RametError
from ramet.protocol import calls
from ramet.protocol.frames import Frame, encode
from ramet.transport.exchange import Exchange

_MOMENT_SECONDS = 0.0003
_QUICK_SECONDS = 0.001  # a call that took no longer is worth looking for the next time
_NOTICE_SIGNALS = struct.pack("ll", 1, 0)  # struct timeval: once a second
_WORTH_IT = len(os.sched_getaffinity(0)) > 1  # with one processor the engine could not run while we look


class Connections(Protocol):
    """What links need of their engine."""

    quick: bool

    def give_back(self, connection: socket.socket, blocking: bool) -> None: ...
    def broken(self, begun: bool) -> Exception: ...


_CLAIM = encode(calls.CLAIM, {})
_TAKEN = encode(calls.TAKEN, {})


class _Claim:
    """Whether the call makes something that its caller has not taken yet. Until then its connection is no other's."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = False

    def before(self, data: bytes) -> bytes:
        """What is sent for a frame."""
        if data[calls.KIND_AT] not in calls.MAKING:
            return data
        self.open = True
        return _CLAIM + data

    def after(self, frame: Frame) -> None:
        if frame.kind == calls.ERROR:
            self.open = False  # nothing was made

    def take(self, connection: socket.socket) -> None:
        if self.open:
            # It fits: the engine has read the request, and nothing else is under way.
            connection.send(_TAKEN)
            self.open = False


def _refusal(connection: socket.socket, exchange: Exchange) -> RametError | None:
    """What an engine without room has said before it hung up, without reading what was sent to it."""
    try:
        data = connection.recv(exchange.wanted_bytes, socket.MSG_DONTWAIT)
    except OSError:
        return None
    exchange.feed(data)
    frame = exchange.next_frame()
    return calls.read_error(frame.header) if frame is not None and frame.kind == calls.ERROR else None


def wake_to_notice_signals(connection: socket.socket) -> None:
    """Have `recv` on a blocking socket fail with EAGAIN now and then, in which Python calls its signal handlers.

    They run in the main thread only, between two steps of Python. A signal that arrives after the last such step and
    before the system call, or in another thread, does not end the call: Ctrl-C would be noticed when the cell is over.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _NOTICE_SIGNALS)


class BlockingLink:
    """No helper thread, no loop, no hand-over."""

    __slots__ = ("_begun", "_claim", "_connection", "_engine", "_exchange", "_left")

    def __init__(self, engine: Connections, connection: socket.socket) -> None:
        self._engine = engine
        self._connection = connection
        self._exchange = Exchange()
        self._claim = _Claim()
        self._begun = False  # something has come
        self._left = False

    def send(self, data: bytes) -> None:
        try:
            self._connection.sendall(self._claim.before(data))
        except OSError as error:
            raise _refusal(self._connection, self._exchange) or self._broken() from error

    def receive(self) -> Frame:
        exchange = self._exchange
        while (frame := exchange.next_frame()) is None:
            try:
                data = self._look(exchange.wanted_bytes)
            except OSError as error:
                raise self._broken() from error
            if not data:
                raise self._broken()
            self._begun = True
            exchange.feed(data)
        self._claim.after(frame)
        return frame

    def _broken(self) -> Exception:
        return ExecutionCancelled("the call was cancelled") if self._left else self._engine.broken(self._begun)

    def taken(self) -> None:
        try:
            self._claim.take(self._connection)
        except OSError as error:
            raise self._broken() from error

    def _look(self, count: int) -> bytes:
        """Look for the answer for a moment before sleeping: waking an idle processor costs as much as a short cell.

        Only while calls are answered that quickly; after a slow one the next waits in peace, and tells if it was quick.
        """
        engine, connection = self._engine, self._connection
        began = perf_counter()
        if engine.quick:
            while perf_counter() - began < _MOMENT_SECONDS:
                try:
                    return connection.recv(count, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    os.sched_yield()
        while True:
            try:
                data = connection.recv(count)
                break
            except BlockingIOError:
                pass  # see wake_to_notice_signals
        engine.quick = _WORTH_IT and perf_counter() - began < _QUICK_SECONDS
        return data

    def leave(self) -> None:
        if self._exchange.over and not self._claim.open:
            self._engine.give_back(self._connection, blocking=True)
            return
        self._left = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # another thread may be reading for us
        self._connection.close()


class AsyncLink:
    """On a socket that does not block. A task that is cancelled closes its connection."""

    __slots__ = ("_begun", "_claim", "_connection", "_engine", "_exchange", "_loop")

    def __init__(self, engine: Connections, connection: socket.socket) -> None:
        self._engine = engine
        self._connection = connection
        self._exchange = Exchange()
        self._claim = _Claim()
        self._begun = False
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._connection, self._claim.before(data))
        except OSError as error:
            raise _refusal(self._connection, self._exchange) or await self._broken() from error

    async def receive(self) -> Frame:
        exchange = self._exchange
        while (frame := exchange.next_frame()) is None:
            try:
                data = self._connection.recv(exchange.wanted_bytes)
            except (BlockingIOError, InterruptedError):
                await readable(self._loop, self._connection)
                continue
            except OSError as error:
                raise await self._broken() from error
            if not data:
                raise await self._broken()
            self._begun = True
            exchange.feed(data)
        self._claim.after(frame)
        return frame

    async def _broken(self) -> Exception:
        # Waits for the engine's process to end, so not on the loop.
        return await asyncio.to_thread(self._engine.broken, self._begun)

    def taken(self) -> None:
        try:
            self._claim.take(self._connection)
        except OSError as error:
            raise self._engine.broken(self._begun) from error

    def leave(self) -> None:
        if self._exchange.over and not self._claim.open:
            self._engine.give_back(self._connection, blocking=False)
        else:
            self._connection.close()


async def readable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    """Wait without reading. A task that is cancelled here leaves the answer in the socket; the engine notices that it
    was never read, and closes what it tells of. ``sock_recv`` would lose it."""
    ready = loop.create_future()
    loop.add_reader(connection, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
