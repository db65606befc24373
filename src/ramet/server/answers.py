"""Answers that several modules give: JSON, made where it does not hold up others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from ramet.server.exchange import JSON, Exchange

# Encoding so many small objects takes a millisecond or two; more are encoded in a thread, which others can interrupt.
QUICK_ITEMS = 500
# What one of them is counted for while a long list is gathered.
ENTRY_BYTES = 160


def encode(value: object) -> bytes:
    """ASCII: names of files may hold what UTF-8 cannot."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


async def answer_json(exchange: Exchange, value: object, status: int = 200) -> None:
    await exchange.respond(status, JSON, encode(value))


async def answer_long_json(exchange: Exchange, value: object, *long: Sequence[Any]) -> None:
    """The same for a value that holds lists of any length."""
    quick = sum(map(len, long)) <= QUICK_ITEMS
    await exchange.respond(200, JSON, encode(value) if quick else await asyncio.to_thread(encode, value))


async def answer_nothing(exchange: Exchange) -> None:
    await exchange.respond(204, [], b"")
