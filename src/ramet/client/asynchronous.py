"""Carries out operations on the running event loop. A task that is cancelled closes its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, TypeVar

from ramet.client.exchange import Exchange
from ramet.client.operations import PULL, Emit, Operation
from ramet.transport.embedded import EmbeddedEngine

Returned = TypeVar("Returned")
Source = Iterator[bytes] | AsyncIterator[bytes]


class _Ended(Exception):
    """Carries what an operation returned out of an asynchronous generator, which cannot return anything itself."""

    def __init__(self, value: object) -> None:
        self.value = value


async def perform(engine: EmbeddedEngine, operation: Operation[Returned], source: Source | None = None) -> Returned:
    """Carry out an operation that emits nothing."""
    call = _Call(engine, operation, source)
    try:
        while True:
            await call.advance()
    except _Ended as ended:
        returned: Returned = ended.value  # type: ignore[assignment]
        return returned
    finally:
        call.leave()


async def iterate(engine: EmbeddedEngine, operation: Operation[None]) -> AsyncGenerator[Any, None]:
    """Carry out an operation and give what it emits. Giving up early closes the connection: the engine notices."""
    call = _Call(engine, operation, None)
    try:
        while True:
            yield await call.advance()
    except _Ended:
        return
    finally:
        call.leave()


class _Call:
    """One operation on one connection."""

    def __init__(self, engine: EmbeddedEngine, operation: Operation[Any], source: Source | None) -> None:
        self._engine = engine
        self._operation = operation
        self._source = source
        self._exchange = Exchange()
        self._loop = asyncio.get_running_loop()
        self._connection = engine.connect(blocking=False)

    async def advance(self) -> object:
        """Up to the next thing that is emitted; raises _Ended at the end."""
        operation, exchange = self._operation, self._exchange
        try:
            step = next(operation)
            while True:
                if isinstance(step, bytes):
                    await self._send(step)
                    step = next(operation)
                elif isinstance(step, Emit):
                    return step.item
                elif step is PULL:
                    try:
                        piece = await self._pull()
                    except Exception as error:
                        step = operation.throw(error)
                    else:
                        step = operation.send(piece)
                else:
                    while (frame := exchange.next_frame()) is None:
                        exchange.feed(await self._receive(exchange.wanted_bytes))
                    step = operation.send(frame)
        except StopIteration as stop:
            raise _Ended(stop.value) from None

    def leave(self) -> None:
        self._operation.close()
        if self._exchange.over:
            self._engine.give_back(self._connection, blocking=False)
        else:
            self._connection.close()

    async def _pull(self) -> bytes | None:
        if self._source is None:
            return None
        if isinstance(self._source, AsyncIterator):
            return await anext(self._source, None)
        # Reading a local file can block.
        return await asyncio.to_thread(next, self._source, None)

    async def _send(self, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._connection, data)
        except OSError as error:
            raise await self._lost() from error

    async def _receive(self, count: int) -> bytes:
        while True:
            try:
                data = self._connection.recv(count)
            except (BlockingIOError, InterruptedError):
                await self._readable()
                continue
            except OSError as error:
                raise await self._lost() from error
            if not data:
                raise await self._lost()
            return data

    async def _readable(self) -> None:
        """Wait without reading. A task that is cancelled here leaves the answer in the socket; the engine notices that
        it was never read, and closes what it tells of. ``sock_recv`` would lose it."""
        ready = self._loop.create_future()
        self._loop.add_reader(self._connection, _set, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(self._connection)

    async def _lost(self) -> Exception:
        # Waits for the engine's process to end, so not on the loop.
        return await asyncio.to_thread(self._engine.lost)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
