"""Bytes from one connection to another and back, until both directions have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ramet.network.streams.socket_stream import SocketStream

# A server that has said its last to a program that neither speaks nor goes: its slot is needed.
_HALF_OPEN_SECONDS = 60.0


async def relay(client: SocketStream, server: SocketStream, sent: Callable[[], int] | None = None) -> bool:
    """Until it is over; both are closed then. False: it did not end by itself, and both have been reset.

    There is no limit to how long a connection may be silent. ``sent`` gives how much the client has sent: with it, one
    that only waits for its client to go is closed after a while.
    """
    there = client.pour_into(server)
    back = server.pour_into(client)
    await back
    if sent is None:
        await there
    else:
        before = -1
        while not there.done() and before != (before := sent()):
            await asyncio.wait((there,), timeout=_HALF_OPEN_SECONDS)
    if client.broken or server.broken:
        client.abort()
        server.abort()
        return False
    client.close()
    server.close()
    return True
