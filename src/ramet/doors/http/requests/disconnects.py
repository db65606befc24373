"""Handles clients that disconnect: the engine call that was made for a client ends with it.

A cell that is to be kept goes on. Its tool calls fail, because no client is left to answer them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from ramet.doors.http.engine_link.link import EngineCall, EngineConnections
from ramet.doors.http.requests.exchange import ClientDisconnected, RequestExchange
from ramet.errors import RametError
from ramet.protocol import calls
from ramet.protocol.frames import Frame, encode


@contextmanager
def ends_with_client(exchange: RequestExchange, call: EngineCall) -> Iterator[None]:
    """Close the call if the client disconnects within the block. Raises ClientDisconnected."""
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        call.close()

    # The flag tells an error that the disconnect caused, because `leave` closed the call, from one of the engine.
    exchange.when_gone(leave)
    try:
        yield
    except RametError:
        if gone:
            raise ClientDisconnected from None
        raise
    finally:
        exchange.when_gone(None)


@contextmanager
def tells_of_departure(exchange: RequestExchange, header: Mapping[str, object]) -> Iterator[None]:
    """Within the block, a disconnect of the client tells the engine to fail the tool calls of the client's cell."""
    about = {name: header.get(name) for name in ("sandbox", "execution", "owner")}
    exchange.when_gone(lambda: exchange.application.in_background(_tools_gone(exchange.link, about)))
    try:
        yield
    finally:
        exchange.when_gone(None)


async def _tools_gone(link: EngineConnections, about: Mapping[str, object]) -> None:
    # An engine that is lost has lost the cell too.
    with suppress(RametError):
        await link.ask(calls.TOOLS_GONE, about)


async def ask(exchange: RequestExchange, kind: int, header: Mapping[str, object], blob: bytes = b"") -> Frame:
    """Make a call with one answer; a disconnect of the client ends it. Raises the error that the engine answers."""
    async with exchange.link.call() as call:
        with ends_with_client(exchange, call):
            await call.send(encode(kind, header, blob))
            async for frame in call.frames():
                if frame.kind == calls.ERROR:
                    raise calls.read_error(frame.header)
    return frame
