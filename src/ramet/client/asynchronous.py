"""Carries out operations on the running event loop. A task that is cancelled gives up its call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

from ramet.client.open_streams import Reading
from ramet.client.operations import RECEIVE, Emit, Operation, ToolCalled, ToolCancelled
from ramet.client.tools.attending import Answering
from ramet.transport.seam import Engine

Returned = TypeVar("Returned")
Made = TypeVar("Made")
Kept = TypeVar("Kept")
Source = Iterator[bytes] | AsyncIterator[bytes]


class _Ended(Exception):
    """Carries what an operation returned out of an asynchronous generator, which cannot return anything itself."""

    def __init__(self, value: object) -> None:
        self.value = value


async def perform(
    engine: Engine,
    operation: Operation[Returned],
    source: Source | None = None,
    answering: Answering | None = None,
) -> Returned:
    """Carry out an operation that emits nothing."""
    call = _Call(engine, operation, source, answering)
    try:
        while True:
            await call.advance()
    except _Ended as ended:
        returned: Returned = ended.value  # type: ignore[assignment]
        return returned
    finally:
        call.leave()


async def make(engine: Engine, operation: Operation[Made], keep: Callable[[Made], Kept]) -> Kept:
    """Carry out an operation that makes something; ``keep`` puts that where it will be closed from.

    A task that is cancelled leaves nothing behind: before the word ``taken`` the engine closes what was made.
    """
    call = _Call(engine, operation, None, None)
    try:
        while True:
            await call.advance()
    except _Ended as ended:
        kept = keep(ended.value)  # type: ignore[arg-type]
        call.taken()
        return kept
    finally:
        call.leave()


async def iterate(
    engine: Engine,
    operation: Operation[None],
    answering: Answering | None = None,
    reading: Reading | None = None,
) -> AsyncGenerator[Any, None]:
    """Carry out an operation and give what it emits. Giving up early gives up the call."""
    if reading is not None:
        reading.begin()
    call = _Call(engine, operation, None, answering)
    try:
        while True:
            item = await call.advance()
            if reading is not None:
                reading.gives(item)
            yield item
    except _Ended:
        return
    finally:
        if reading is not None:
            reading.end()
        call.leave()


class _Call:
    """One operation on one link."""

    def __init__(
        self, engine: Engine, operation: Operation[Any], source: Source | None, answering: Answering | None
    ) -> None:
        self._operation = operation
        self._source = source
        self._answering = answering
        self._link = engine.async_link()

    async def advance(self) -> object:
        """Up to the next thing that is emitted; raises _Ended at the end."""
        operation, link = self._operation, self._link
        try:
            step = next(operation)
            while True:
                if isinstance(step, bytes):
                    await link.send(step)
                    step = next(operation)
                elif step is RECEIVE:
                    step = operation.send(await link.receive())
                elif isinstance(step, Emit):
                    return step.item
                elif isinstance(step, ToolCalled | ToolCancelled):
                    assert self._answering is not None
                    self._answering.take(step)
                    step = next(operation)
                else:
                    try:
                        piece = await self._pull()
                    except Exception as error:
                        step = operation.throw(error)
                    else:
                        step = operation.send(piece)
        except StopIteration as stop:
            raise _Ended(stop.value) from None

    def taken(self) -> None:
        self._link.taken()

    def leave(self) -> None:
        if self._answering is not None:
            self._answering.end()
        self._operation.close()
        self._link.leave()

    async def _pull(self) -> bytes | None:
        if self._source is None:
            return None
        if isinstance(self._source, AsyncIterator):
            return await anext(self._source, None)
        # Reading a local file can block.
        return await asyncio.to_thread(next, self._source, None)
