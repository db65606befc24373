"""JSON answers that several modules give, encoded so that a long one does not block the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from ramet.doors.http.requests.exchange import JSON, RequestExchange

# Encoding this many small objects takes a millisecond or two. A thread encodes longer lists, so that the event loop can
# interrupt it.
QUICK_ITEMS = 500
# The memory that is counted for each entry while a long list is gathered.
ENTRY_BYTES = 160


def encode(value: object) -> bytes:
    """Encode as ASCII, because file names may hold bytes that are not valid UTF-8."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


async def answer_json(exchange: RequestExchange, value: object, status: int = 200) -> None:
    await exchange.respond(status, JSON, encode(value))


async def answer_long_json(exchange: RequestExchange, value: object, *long: Sequence[Any]) -> None:
    """Answer with a JSON value that holds lists of any length."""
    quick = sum(map(len, long)) <= QUICK_ITEMS
    await exchange.respond(200, JSON, encode(value) if quick else await asyncio.to_thread(encode, value))


async def answer_nothing(exchange: RequestExchange) -> None:
    await exchange.respond(204, [], b"")
