"""A client that hangs up ends the call to the engine that was made for it: nothing is left waiting for nobody.

A cell that is to be kept goes on. Its tools do not: nobody is there who could answer their calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from ramet.errors import RametError
from ramet.protocol import calls
from ramet.protocol.frames import Frame, encode
from ramet.server.exchange import ClientGone, Exchange
from ramet.server.link import EngineCall, Link


@contextmanager
def ends_with_client(exchange: Exchange, call: EngineCall) -> Iterator[None]:
    """Within the block: when the client hangs up the call is given up, and ClientGone is raised."""
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        call.close()

    exchange.when_gone(leave)
    try:
        yield
    except RametError:
        if gone:
            raise ClientGone from None
        raise
    finally:
        exchange.when_gone(None)


@contextmanager
def tells_of_departure(exchange: Exchange, header: Mapping[str, object]) -> Iterator[None]:
    """Within the block: when the client hangs up, the engine is told that nobody answers the tool calls of its cell."""
    about = {name: header.get(name) for name in ("sandbox", "execution", "owner")}
    exchange.when_gone(lambda: exchange.application.in_background(_tools_gone(exchange.link, about)))
    try:
        yield
    finally:
        exchange.when_gone(None)


async def _tools_gone(link: Link, about: Mapping[str, object]) -> None:
    # An engine that is lost has lost the cell as well.
    with suppress(RametError):
        await link.ask(calls.TOOLS_GONE, about)


async def ask(exchange: Exchange, kind: int, header: Mapping[str, object], blob: bytes = b"") -> Frame:
    """One call with one answer, for as long as the client waits for it. What the engine says went wrong is raised."""
    async with exchange.link.call() as call:
        with ends_with_client(exchange, call):
            await call.send(encode(kind, header, blob))
            async for frame in call.frames():
                if frame.kind == calls.ERROR:
                    raise calls.read_error(frame.header)
    return frame
