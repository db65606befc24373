"""Work in a thread cannot be stopped half-way: whoever asked for it may leave, but not before it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T], undo: Callable[[T], object]) -> T:
    """Await `work`. When cancelled, wait until it is over all the same and `undo` what it made: nobody owns that."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # By a callback, so that a second cancellation, of the wait below, loses nothing either.
        task.add_done_callback(lambda done: _undo(done, undo))
        await asyncio.wait([task])
        raise


def _undo(done: asyncio.Future[T], undo: Callable[[T], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())
