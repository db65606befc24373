"""A client that hangs up ends the call to the engine that was made for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ramet.errors import RametError
from ramet.server.exchange import ClientGone, Exchange
from ramet.server.link import EngineCall


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
