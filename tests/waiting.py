"""Waits of tests that share one event loop with what they test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_WAIT_SECONDS = 30
_ROUNDS = 20


async def until(condition: Callable[[], object]) -> None:
    """Asks again and again until the condition holds."""
    async with asyncio.timeout(_WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def settle() -> None:
    """Call before asserting that something has NOT happened: gives a wrong engine the time to do it.

    What is right passes however long this takes, so such a test cannot fail by chance. To wait for something that does
    happen, use `until`.
    """
    for _ in range(_ROUNDS):
        await asyncio.sleep(0.001)
