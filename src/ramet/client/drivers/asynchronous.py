"""Carries out operations on the running event loop. A task that is cancelled gives up its call.

``blocking`` has the same names for programs without a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from ramet.client.arguments import server_for
from ramet.client.handle import SandboxHandle
from ramet.client.open_streams import StreamReader
from ramet.client.operations import tool_calls as tool_operations
from ramet.client.operations.steps import RECEIVE, Emit, Operation, ToolCalled, ToolCancelled
from ramet.client.tools.call_reader import ToolCalls
from ramet.client.tools.tool import Toolset
from ramet.errors import RametError
from ramet.protocol.values.results import Event, Result
from ramet.protocol.values.value_bounds import INLINE_BYTES
from ramet.transport.embedded import default_engine
from ramet.transport.seam import Engine

Returned = TypeVar("Returned")
Made = TypeVar("Made")
Kept = TypeVar("Kept")
Source = Iterator[bytes] | AsyncIterator[bytes]

_CLEANUP_SECONDS = 5.0  # a cancelled task waits no longer than this to leave nothing behind


class _Ended(Exception):
    """Carries the result of an operation out of ``_OperationRun.advance``, which returns emitted items."""

    def __init__(self, value: object) -> None:
        self.value = value


async def perform(
    engine: Engine,
    operation: Operation[Returned],
    source: Source | None = None,
    tool_calls: ToolCalls | None = None,
) -> Returned:
    """Carry out an operation that emits nothing, and return its result."""
    run = _OperationRun(engine, operation, source, tool_calls)
    try:
        while True:
            await run.advance()
    except _Ended as ended:
        returned: Returned = ended.value  # type: ignore[assignment]
        return returned
    finally:
        run.leave()


async def make(
    engine: Engine, operation: Operation[Made], keep: Callable[[Made], Kept], source: Source | None = None
) -> Kept:
    """Carry out an operation that makes something; ``keep`` stores it where it will be closed from.

    A task that is cancelled leaves nothing behind: until ``taken`` is sent the engine closes what was made.
    """
    run = _OperationRun(engine, operation, source, None)
    try:
        while True:
            await run.advance()
    except _Ended as ended:
        kept = keep(ended.value)  # type: ignore[arg-type]
        run.taken()
        return kept
    finally:
        run.leave()


async def iterate(
    engine: Engine,
    operation: Operation[None],
    tool_calls: ToolCalls | None = None,
    reader: StreamReader | None = None,
) -> AsyncGenerator[Any, None]:
    """Carry out an operation and yield the items that it emits. A caller who stops early gives up the call."""
    if reader is not None:
        reader.begin()
    run = _OperationRun(engine, operation, None, tool_calls)
    try:
        while True:
            item = await run.advance()
            if reader is not None:
                reader.hand_out(item)
            yield item
    except _Ended:
        return
    finally:
        if reader is not None:
            reader.end()
        run.leave()


class _OperationRun:
    """One operation on one link."""

    def __init__(
        self, engine: Engine, operation: Operation[Any], source: Source | None, tool_calls: ToolCalls | None
    ) -> None:
        self._operation = operation
        self._source = source
        self._tool_calls = tool_calls
        self._link = engine.async_link()

    async def advance(self) -> object:
        """Carry out steps until one emits an item, and return that. Raises _Ended when the operation returns."""
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
                    assert self._tool_calls is not None
                    self._tool_calls.take(step)
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
        if self._tool_calls is not None:
            self._tool_calls.end()
        self._operation.close()
        self._link.leave()

    async def _pull(self) -> bytes | None:
        if self._source is None:
            return None
        if isinstance(self._source, AsyncIterator):
            return await anext(self._source, None)
        # Reading a local file can block.
        return await asyncio.to_thread(next, self._source, None)


async def run_cell(handle: SandboxHandle, cell: Operation[Result], timeout: float | None) -> Result:
    """Run a cell and answer its tool calls: coroutines on this loop, other functions in threads."""
    return await perform(handle.engine, cell, tool_calls=handle.tool_calls(on_loop=True))


def stream_cell(handle: SandboxHandle, cell: Operation[None]) -> AsyncGenerator[Event, None]:
    """Yield the events of a cell, answer its tool calls, and record that this task reads the stream."""
    reader = StreamReader(handle.id, on_loop=True)
    return reader.watch(iterate(handle.engine, cell, handle.tool_calls(on_loop=True), reader))


async def give_tools(handle: SandboxHandle, tools: Toolset) -> None:
    """Give the sandbox these tools instead of those it has."""
    await perform(handle.engine, tool_operations.set_tools(handle.open(), tools.data))
    handle.tools = tools


async def engine_at(url: str | None, api_key: str | None) -> Engine:
    """Return the engine behind a server, or that of this process. Starting one blocks, so a thread does it."""
    require_loop()
    server = server_for(None, url, api_key)
    return server if server is not None else await asyncio.to_thread(default_engine)


def require_loop() -> None:
    """Raise RametError where no loop of asyncio runs, for instance in a program of trio."""
    if asyncio._get_running_loop() is None:
        raise RametError(
            "AsyncSandbox needs a running event loop of asyncio, and there is none here",
            hint="start one with asyncio.run(); with trio or another library, use Sandbox in a thread",
        )


async def decode_value(data: bytes) -> Any:
    """Decode a value that came out of a sandbox."""
    from ramet.client import value_decoding  # most programs get no values

    if len(data) <= INLINE_BYTES:
        return value_decoding.decode(data)
    # Code in the sandbox chose the value, and decoding may take seconds: other tasks of this loop must go on.
    return await asyncio.to_thread(value_decoding.decode, data)


async def write_piece(write: Callable[[bytes], None], piece: bytes) -> None:
    """Write to a local file in a thread, because a local disk can be slow.

    A task that is cancelled waits for the thread all the same: it closes the file next.
    """
    writing = asyncio.ensure_future(asyncio.to_thread(write, piece))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        raise


@asynccontextmanager
async def best_effort() -> AsyncIterator[None]:
    """Try to clean up: errors are dropped, and a cancelled task does not wait long."""
    with suppress(RametError, TimeoutError):
        async with asyncio.timeout(_CLEANUP_SECONDS):
            yield
