"""Waiting for work that cannot be stopped halfway, such as a function in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T], undo: Callable[[T], object]) -> T:
    """Await `work`. When cancelled, wait for its end all the same and `undo` its result, which has no owner then."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # As a callback, so that a second cancellation, during the wait below, still leads to the undo.
        task.add_done_callback(lambda done: _undo(done, undo))
        await asyncio.wait([task])
        raise


def _undo(done: asyncio.Future[T], undo: Callable[[T], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())
