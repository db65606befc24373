"""Work in a thread is awaited to its end, and undone when nobody wants it any more."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ramet.isolation.thread_work import finish
from tests.waiting import settle


async def test_the_result_of_work_that_is_wanted_is_kept() -> None:
    undone: list[int] = []
    assert await finish(asyncio.to_thread(lambda: 5), undone.append) == 5
    assert undone == []


async def test_whoever_leaves_waits_for_the_work_and_its_result_is_undone() -> None:
    begun, go_on = threading.Event(), threading.Event()
    undone: list[int] = []

    def work() -> int:
        begun.set()
        go_on.wait(5)
        return 5

    task = asyncio.create_task(finish(asyncio.to_thread(work), undone.append))
    await asyncio.to_thread(begun.wait, 5)
    task.cancel()
    await settle()
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == [5]


async def test_work_that_fails_after_its_caller_left_is_not_undone() -> None:
    begun, undone = threading.Event(), list[int]()

    def work() -> int:
        begun.set()
        raise OSError

    task = asyncio.create_task(finish(asyncio.to_thread(work), undone.append))
    await asyncio.to_thread(begun.wait, 5)
    task.cancel()
    with pytest.raises((asyncio.CancelledError, OSError)):
        await task
    assert undone == []
