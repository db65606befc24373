"""Relays a websocket after the switch, until one side ends. Secrets of the host stay masked."""

from __future__ import annotations

import asyncio

from ramet.network.http.bodies import Incoming
from ramet.network.http.websocket_frames import MaskedFrames
from ramet.network.secrets.work_budget import slices


async def relay(client: Incoming, server: Incoming, masked: MaskedFrames | None) -> None:
    """Relay until the server ends or either side is gone. Raises ConnectionError, or Malformed for invalid frames."""
    # Both directions at once. This coroutine handles the server's bytes, so its end decides when the relay ends.
    upwards = asyncio.create_task(_upwards(client, server))
    try:
        while data := await server.more():
            for part in slices(data) if masked is not None else (data,):
                if masked is not None:
                    part = masked.feed(part)
                    await asyncio.sleep(0)  # searching for secrets takes long: let other connections run
                if part:
                    client.stream.write(part)
                    await client.stream.drain()
    finally:
        upwards.cancel()


async def _upwards(client: Incoming, server: Incoming) -> None:
    try:
        while data := await client.more():
            server.stream.write(data)
            await server.stream.drain()
        server.stream.write_eof()
    except ConnectionError:
        server.stream.abort()  # wakes the coroutine that reads from it
