"""Calls to the engine of this process, on a socket that carries one call at a time.

Giving up a call closes its socket: the engine notices and undoes what it can.
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
from ramet.transport.exchange import CallExchange

_MOMENT_SECONDS = 0.0003
_QUICK_SECONDS = 0.001  # after a call this quick, the next one polls first
_NOTICE_SIGNALS = struct.pack("ll", 1, 0)  # struct timeval: one second
_WORTH_IT = len(os.sched_getaffinity(0)) > 1  # with one processor the engine could not run while we poll


class EmbeddedConnections(Protocol):
    """The part of an engine that links need."""

    quick: bool

    def give_back(self, connection: socket.socket, blocking: bool) -> None: ...
    def broken(self, begun: bool) -> Exception: ...


_CLAIM = encode(calls.CLAIM, {})
_TAKEN = encode(calls.TAKEN, {})


class _Claim:
    """Tracks whether the call made something that its caller has not taken yet.

    Until then its connection is not reused.
    """

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = False

    def before(self, data: bytes) -> bytes:
        """Return the bytes to send for a frame."""
        if data[calls.KIND_AT] not in calls.CLAIMED:
            return data
        self.open = True
        return _CLAIM + data

    def after(self, frame: Frame) -> None:
        if frame.kind == calls.ERROR:
            self.open = False  # nothing was made

    def take(self, connection: socket.socket) -> None:
        if self.open:
            # Cannot block: the engine has read the request, so the socket's buffer is empty.
            connection.send(_TAKEN)
            self.open = False


def _refusal(connection: socket.socket, exchange: CallExchange) -> RametError | None:
    """Return the error that an engine without room sent before it hung up, without having read our request."""
    try:
        data = connection.recv(exchange.wanted_bytes, socket.MSG_DONTWAIT)
    except OSError:
        return None
    exchange.feed(data)
    frame = exchange.next_frame()
    return calls.read_error(frame.header) if frame is not None and frame.kind == calls.ERROR else None


def wake_to_notice_signals(connection: socket.socket) -> None:
    """Make `recv` on a blocking socket return with EAGAIN once a second, so that Python runs signal handlers.

    Python runs them in the main thread only, between two bytecodes. A signal that arrives after the last bytecode and
    before the system call, or in another thread, does not end the call: Ctrl-C would take effect only when the cell is
    over.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _NOTICE_SIGNALS)


class BlockingLink:
    """A call in the caller's own thread, without helper threads or an event loop."""

    __slots__ = ("_begun", "_claim", "_connection", "_engine", "_exchange", "_left")

    def __init__(self, engine: EmbeddedConnections, connection: socket.socket) -> None:
        self._engine = engine
        self._connection = connection
        self._exchange = CallExchange()
        self._claim = _Claim()
        self._begun = False  # part of the answer has arrived
        # Set by `leave` before it closes the socket, so that a thread that reads for us reports a cancelled call.
        self._left = False

    def send(self, data: bytes) -> None:
        try:
            self._connection.sendall(self._claim.before(data))
        except OSError as error:
            raise _refusal(self._connection, self._exchange) or self._broken() from error

    def receive(self) -> Frame:
        """Return the next frame.

        Raise the error of ``EmbeddedConnections.broken`` if the engine hangs up, ExecutionCancelled after ``leave``.
        """
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
        """Poll for the answer for a moment before sleeping: waking an idle processor takes as long as a short cell.

        Only while calls are answered that quickly. After a slow one the next call sleeps at once, and measures again.
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
                pass  # the timeout of wake_to_notice_signals
        engine.quick = _WORTH_IT and perf_counter() - began < _QUICK_SECONDS
        return data

    def leave(self) -> None:
        if self._exchange.over and not self._claim.open:
            self._engine.give_back(self._connection, blocking=True)
            return
        # Before the shutdown: it wakes a reader in another thread, which reads this flag at once.
        self._left = True
        with suppress(OSError):
            # Wakes another thread that reads for us; `close` alone would leave it in `recv`.
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class AsyncEmbeddedLink:
    """A call on a non-blocking socket. A cancelled task closes its connection."""

    __slots__ = ("_begun", "_claim", "_connection", "_engine", "_exchange", "_loop")

    def __init__(self, engine: EmbeddedConnections, connection: socket.socket) -> None:
        self._engine = engine
        self._connection = connection
        self._exchange = CallExchange()
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
                # Tried before waiting: the frame is often there already, and a turn of the loop costs more than this
                # call.
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
        # In a thread, because it waits for the engine's process to end.
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
    """Wait without reading.

    A task that is cancelled here leaves the answer in the socket. The engine sees that it was never read and closes
    what it made; ``sock_recv`` would have taken the answer out and lost it.
    """
    ready = loop.create_future()
    loop.add_reader(connection, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
