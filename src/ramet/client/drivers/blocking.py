"""Carries out operations in the caller's own thread.

``asynchronous`` has the same names for programs on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

from ramet.client.arguments import server_for
from ramet.client.handle import SandboxHandle
from ramet.client.open_streams import StreamReader
from ramet.client.operations import tool_calls as tool_operations
from ramet.client.operations.steps import RECEIVE, Emit, Operation, Step, ToolCalled, ToolCancelled
from ramet.client.tools.call_reader import ToolCallReader, ToolCalls
from ramet.client.tools.tool import Toolset
from ramet.errors import RametError
from ramet.protocol.values.results import Event, Result
from ramet.transport.embedded import default_engine
from ramet.transport.seam import Engine, Link

Returned = TypeVar("Returned")
Made = TypeVar("Made")
Kept = TypeVar("Kept")


def perform(
    engine: Engine,
    operation: Operation[Returned],
    source: Iterator[bytes] | None = None,
    tool_calls: ToolCalls | None = None,
) -> Returned:
    """Carry out an operation that emits nothing, and return its result.

    This repeats the loop of ``iterate``, because a generator here would cost every short call some microseconds.
    """
    link = engine.link()
    given_away = False
    try:
        step = next(operation)
        while True:
            if tool_calls is not None and isinstance(step, ToolCalled) and not engine.remote:
                given_away = True
                read: Returned = ToolCallReader(link, operation, tool_calls).result(step)
                return read
            step = _take(step, link, operation, source, tool_calls)
    except StopIteration as stop:
        value: Returned = stop.value
        return value
    finally:
        if tool_calls is not None:
            tool_calls.end()
        # A thread of the ToolCallReader may still be inside the generator, which then cannot be closed from here.
        if not given_away:
            operation.close()
        link.leave()


def make(
    engine: Engine,
    operation: Operation[Made],
    keep: Callable[[Made], Kept],
    source: Iterator[bytes] | None = None,
) -> Kept:
    """Carry out an operation that makes something; ``keep`` stores it where it will be closed from.

    An exception at any moment, such as a signal handler's, leaves nothing behind: until ``taken`` is sent the engine
    closes what was made, and after that the handle does.
    """
    link = engine.link()
    try:
        step = next(operation)
        while True:
            step = _take(step, link, operation, source, None)
    except StopIteration as stop:
        kept = keep(stop.value)
        link.taken()
        return kept
    finally:
        operation.close()
        link.leave()


def iterate(
    engine: Engine,
    operation: Operation[None],
    tool_calls: ToolCalls | None = None,
    reader: StreamReader | None = None,
) -> Generator[Any, None, None]:
    """Carry out an operation and yield the items that it emits. A caller who stops early gives up the call."""
    if reader is not None:
        reader.begin()
    link = engine.link()
    try:
        step = next(operation)
        while True:
            if isinstance(step, Emit):
                if reader is not None:
                    reader.hand_out(step.item)
                yield step.item
                step = next(operation)
            else:
                step = _take(step, link, operation, None, tool_calls)
    except StopIteration:
        return
    finally:
        if reader is not None:
            reader.end()
        if tool_calls is not None:
            tool_calls.end()
        operation.close()
        link.leave()


def _take(
    step: Step,
    link: Link,
    operation: Operation[Any],
    source: Iterator[bytes] | None,
    tool_calls: ToolCalls | None,
) -> Step:
    """Carry out one step, and return the next."""
    if isinstance(step, bytes):
        link.send(step)
        return next(operation)
    if step is RECEIVE:
        return operation.send(link.receive())
    if isinstance(step, ToolCalled | ToolCancelled):
        assert tool_calls is not None
        tool_calls.take(step)
        return next(operation)
    try:
        piece = next(source, None) if source is not None else None
    except Exception as error:
        return operation.throw(error)
    return operation.send(piece)


def run_cell(handle: SandboxHandle, cell: Operation[Result], timeout: float | None) -> Result:
    """Run a cell and answer its tool calls.

    Tools may run in this thread if it waits without a limit: otherwise a slow tool would hold back the timeout.
    """
    tool_calls = handle.tool_calls(on_loop=False, in_callers_thread=timeout is None)
    return perform(handle.engine, cell, tool_calls=tool_calls)


def stream_cell(handle: SandboxHandle, cell: Operation[None]) -> Generator[Event, None, None]:
    """Yield the events of a cell, answer its tool calls, and record that this thread reads the stream."""
    reader = StreamReader(handle.id, on_loop=False)
    return reader.watch(iterate(handle.engine, cell, handle.tool_calls(on_loop=False), reader))


def give_tools(handle: SandboxHandle, tools: Toolset) -> None:
    """Give the sandbox these tools instead of those it has."""
    perform(handle.engine, tool_operations.set_tools(handle.open(), tools.data))
    handle.tools = tools


def engine_at(url: str | None, api_key: str | None) -> Engine:
    """Return the engine behind a server, or that of this process, which is started if there is none."""
    return server_for(None, url, api_key) or default_engine()


def decode_value(data: bytes) -> Any:
    """Decode a value that came out of a sandbox."""
    from ramet.client import value_decoding  # most programs get no values

    return value_decoding.decode(data)


def write_piece(write: Callable[[bytes], None], piece: bytes) -> None:
    """Write to a local file."""
    write(piece)


def best_effort() -> AbstractContextManager[None]:
    """Try to clean up: errors are dropped."""
    return suppress(RametError)
