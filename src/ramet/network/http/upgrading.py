"""Behind a switch to websockets: bytes both ways until one side ends. Those of hosts with secrets stay masked."""

from __future__ import annotations

import asyncio

from ramet.network.http.bodies import Incoming
from ramet.network.http.frames import MaskedFrames
from ramet.network.secrets.effort import slices


async def relay(client: Incoming, server: Incoming, masked: MaskedFrames | None) -> None:
    """Until the server has ended, or either is gone. Malformed: it speaks something else."""
    upwards = asyncio.create_task(_upwards(client, server))
    try:
        while data := await server.more():
            for part in slices(data) if masked is not None else (data,):
                if masked is not None:
                    part = masked.feed(part)
                    await asyncio.sleep(0)  # looking for secrets takes a while: others have their turn
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
        server.stream.abort()  # wakes whoever reads from it
