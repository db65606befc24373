"""Long work on files: an owner has one thread, others do not wait for it, and work that nobody wants ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from ramet.isolation.files.walks import Stop, WalkCancelled, Walks


@pytest.fixture
def walks() -> Iterator[Walks]:
    made = Walks()
    yield made
    made.close()


class Walk:
    """One that goes on until it is let go, or asked to stop."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.stopped = False

    def __call__(self, stop: Stop) -> int:
        self.begun.set()
        for _ in range(10_000):
            if self.let_go.wait(0.001):
                return 5
            try:
                stop.check()
            except WalkCancelled:
                self.stopped = True
                raise
        raise TimeoutError


async def begun(walk: Walk) -> None:
    assert await asyncio.to_thread(walk.begun.wait, 10)


async def test_an_owner_has_one_walk_at_a_time_and_others_do_not_wait_for_it(walks: Walks) -> None:
    walking = [Walk() for _ in range(7)]
    tasks = [asyncio.create_task(walks.run("greedy", walk)) for walk in walking]
    await begun(walking[0])
    async with asyncio.timeout(10):
        assert await walks.run("modest", lambda _: 1) == 1
        assert await walks.run("another", lambda _: 2) == 2
    assert [walk.begun.is_set() for walk in walking] == [True] + [False] * 6
    for walk in walking:
        walk.let_go.set()
    async with asyncio.timeout(10):
        assert await asyncio.gather(*tasks) == [5] * 7


async def test_a_walk_that_nobody_waits_for_is_asked_to_stop(walks: Walks) -> None:
    walk, second = Walk(), Walk()
    task, waiting = (asyncio.create_task(walks.run("one", each)) for each in (walk, second))
    await begun(walk)
    for each in (waiting, task):
        each.cancel()
        async with asyncio.timeout(10):
            with pytest.raises(asyncio.CancelledError):
                await each
    assert walk.stopped
    assert not second.begun.is_set()


async def test_one_that_waits_for_a_thread_is_given_up_at_once(walks: Walks) -> None:
    busy = [Walk(), Walk()]
    tasks = [asyncio.create_task(walks.run(str(number), walk)) for number, walk in enumerate(busy)]
    for walk in busy:
        await begun(walk)
    late = asyncio.create_task(walks.run("late", lambda _: 1))
    while not walks._threads._work_queue.qsize():
        await asyncio.sleep(0)
    late.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await late
    assert not any(walk.stopped for walk in busy)
    for walk in busy:
        walk.let_go.set()
    async with asyncio.timeout(10):
        assert await asyncio.gather(*tasks) == [5, 5]


async def test_what_was_made_for_nobody_is_undone(walks: Walks) -> None:
    begun_event, go_on = threading.Event(), threading.Event()
    undone: list[int] = []

    def deaf(stop: Stop) -> int:
        begun_event.set()
        go_on.wait(10)
        return 5

    task = asyncio.create_task(walks.run("one", deaf, undone.append))
    await asyncio.to_thread(begun_event.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == [5]


async def test_closing_stops_all(walks: Walks) -> None:
    walk = Walk()
    task = asyncio.create_task(walks.run("one", walk))
    await begun(walk)
    walks.close()
    async with asyncio.timeout(10):
        with pytest.raises(WalkCancelled):
            await task
