"""Streams an answer: the recorded events, pings while there are none, and an error if it ends in one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from starlette.types import Receive, Send

from ramet.doors.gateway.turns.recordings import Recording
from ramet.doors.gateway.upstream.sse import PING, encode

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # for proxies that buffer answers
}
_PIECE_BYTES = 64 * 1024


async def send_events(
    send: Send, recording: Recording, gone: asyncio.Task[None], request_id: str, ping_seconds: float
) -> bool:
    """Send the body of the answer. Returns False if the client disconnected before its end."""
    seen = 0
    while not gone.done():
        piece = bytearray()
        while seen < len(recording.events) and len(piece) < _PIECE_BYTES:
            piece += encode(recording.events[seen])
            seen += 1
        if piece:
            await send({"type": "http.response.body", "body": bytes(piece), "more_body": True})
        elif recording.over:
            last = b"" if recording.error is None else encode(recording.error.body(request_id))
            await send({"type": "http.response.body", "body": last, "more_body": False})
            return True
        elif not await first_of(recording.beyond(seen), gone, ping_seconds):
            await send({"type": "http.response.body", "body": PING, "more_body": True})
    return False


async def first_of(wanted: Awaitable[None], gone: asyncio.Task[None], seconds: float | None = None) -> bool:
    """Wait for something, or for the client's disconnect. Returns False after a timeout."""
    task = asyncio.ensure_future(wanted)
    try:
        done, _ = await asyncio.wait((task, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        task.cancel()


async def client_gone(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
