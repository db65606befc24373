"""Calls to the engine of this process, on a socket that carries one at a time.

A call that is given up closes its socket: the engine notices, and undoes what it can.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from time import perf_counter
from typing import Protocol

from ramet.errors import ExecutionCancelled
from ramet.protocol.frames import Frame
from ramet.transport.exchange import Exchange

_MOMENT_SECONDS = 0.0003
_QUICK_SECONDS = 0.001  # a call that took no longer is worth looking for the next time
_WORTH_IT = len(os.sched_getaffinity(0)) > 1  # with one processor the engine could not run while we look


class Connections(Protocol):
    """What links need of their engine."""

    quick: bool

    def give_back(self, connection: socket.socket, blocking: bool) -> None: ...
    def lost(self) -> Exception: ...


class BlockingLink:
    """No helper thread, no loop, no hand-over."""

    __slots__ = ("_connection", "_engine", "_exchange", "_left")

    def __init__(self, engine: Connections, connection: socket.socket) -> None:
        self._engine = engine
        self._connection = connection
        self._exchange = Exchange()
        self._left = False

    def send(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise self._broken() from error

    def receive(self) -> Frame:
        exchange = self._exchange
        while (frame := exchange.next_frame()) is None:
            try:
                data = self._look(exchange.wanted_bytes)
            except OSError as error:
                raise self._broken() from error
            if not data:
                raise self._broken()
            exchange.feed(data)
        return frame

    def _broken(self) -> Exception:
        return ExecutionCancelled("the call was given up") if self._left else self._engine.lost()

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
        data = connection.recv(count)
        engine.quick = _WORTH_IT and perf_counter() - began < _QUICK_SECONDS
        return data

    def leave(self) -> None:
        if self._exchange.over:
            self._engine.give_back(self._connection, blocking=True)
            return
        self._left = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # another thread may be reading for us
        self._connection.close()


class AsyncLink:
    """On a socket that does not block. A task that is cancelled closes its connection."""

    __slots__ = ("_connection", "_engine", "_exchange", "_loop")

    def __init__(self, engine: Connections, connection: socket.socket) -> None:
        self._engine = engine
        self._connection = connection
        self._exchange = Exchange()
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._connection, data)
        except OSError as error:
            raise await self._lost() from error

    async def receive(self) -> Frame:
        exchange = self._exchange
        while (frame := exchange.next_frame()) is None:
            try:
                data = self._connection.recv(exchange.wanted_bytes)
            except (BlockingIOError, InterruptedError):
                await readable(self._loop, self._connection)
                continue
            except OSError as error:
                raise await self._lost() from error
            if not data:
                raise await self._lost()
            exchange.feed(data)
        return frame

    async def _lost(self) -> Exception:
        # Waits for the engine's process to end, so not on the loop.
        return await asyncio.to_thread(self._engine.lost)

    def leave(self) -> None:
        if self._exchange.over:
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
