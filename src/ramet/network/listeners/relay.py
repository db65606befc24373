"""Relays bytes between two connections until both directions have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ramet.network.streams.socket_stream import SocketStream

# A server has finished, but the program neither sends nor closes. After this time its slot is taken back.
_HALF_OPEN_SECONDS = 60.0


async def relay(client: SocketStream, server: SocketStream, sent: Callable[[], int] | None = None) -> bool:
    """Relay until it is over and close both. Returns False if it did not end in order; then both were reset.

    A connection may be silent for any time. ``sent`` returns how much the client has sent. With it, a connection whose
    server has finished is closed when the client sends nothing more for a while.
    """
    there = client.pour_into(server)
    back = server.pour_into(client)
    # The server's direction first: when a server has finished, the rest depends on the client alone.
    await back
    if sent is None:
        await there
    else:
        before = -1
        # Ends when a whole period passes without progress.
        while not there.done() and before != (before := sent()):
            await asyncio.wait((there,), timeout=_HALF_OPEN_SECONDS)
    if client.broken or server.broken:
        client.abort()
        server.abort()
        return False
    client.close()
    server.close()
    return True
