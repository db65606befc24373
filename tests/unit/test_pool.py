"""The pool: a few kinds wait, a bounded number in all, and none for long that nobody asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ramet.isolation import pool as pools
from ramet.isolation.pool import Load, Pool, PoolBounds

BOUNDS = PoolBounds(of_a_kind=4, kinds=4, in_all=32, of_a_kind_expected=16, enough=2, refill_after_seconds=0.01)


class ScriptedPod:
    def __init__(self) -> None:
        self.alive = True
        self.closed = False

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True


class World:
    """A pool, and all pods that it ever made."""

    def __init__(self, bounds: PoolBounds = BOUNDS, load: Load | None = None) -> None:
        self.made: list[ScriptedPod] = []
        self.error: Exception | None = None
        self.pool: Pool[int, ScriptedPod] = Pool(self._make, bounds, load)

    async def _make(self, _: int) -> ScriptedPod:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.made.append(ScriptedPod())
        return self.made[-1]

    @property
    def open(self) -> int:
        return sum(not pod.closed for pod in self.made)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_any_number_of_kinds_keeps_no_more_than_a_few_ready() -> None:
    world = World()
    for number in range(80):
        await world.pool.fill(number)
        assert len(world.pool) <= BOUNDS.kinds * 4
    await until(lambda: world.open == len(world.pool))
    assert world.pool.counts() == [4] * BOUNDS.kinds
    await world.pool.close()
    assert world.open == 0


async def test_kinds_that_nobody_asks_for_are_closed_but_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "UNUSED_SECONDS", 0.05)
    world = World()
    for number in range(3):
        await world.pool.fill(number)
    await until(lambda: world.pool.counts() == [4] and world.open == 4)
    assert world.pool.take(2) is not None
    await world.pool.close()


async def test_all_that_wait_are_bounded_together_and_older_kinds_make_room() -> None:
    world = World()
    for number in range(BOUNDS.kinds):
        world.pool.expect(number, 100)
        await world.pool.fill(number)
        assert len(world.pool) <= BOUNDS.in_all
    assert world.pool.counts()[-1] == BOUNDS.of_a_kind_expected
    await world.pool.close()
    assert world.open == 0


async def test_what_waits_is_given_up_for_room_and_not_made_again_at_once() -> None:
    world = World()
    await world.pool.fill(1)
    assert await world.pool.give_up()
    assert (world.open, world.pool.load.crowded) == (0, True)
    await world.pool.fill(1)
    assert len(world.pool) == 0
    assert not await world.pool.give_up()
    await world.pool.close()


async def test_one_that_cannot_be_closed_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "CLOSE_SECONDS", 0.01)
    world = World()
    await world.pool.fill(1)
    closing = asyncio.Event()
    stuck = world.made[0]
    monkeypatch.setattr(stuck, "close", closing.wait)
    assert await world.pool.give_up()
    assert world.open == 1
    await world.pool.close()
    closing.set()


async def test_a_caller_that_is_cancelled_does_not_cancel_the_closing() -> None:
    world = World()
    await world.pool.fill(1)
    giving_up = asyncio.ensure_future(world.pool.give_up())
    await asyncio.sleep(0)
    giving_up.cancel()
    await until(lambda: world.open == 0)
    assert giving_up.cancelled()
    await world.pool.close()


async def test_a_dead_pod_is_given_to_nobody_and_one_that_cannot_be_made_is_no_error() -> None:
    world = World(BOUNDS._replace(of_a_kind=1))
    await world.pool.fill(1)
    world.made[0].alive = False
    world.error = OSError("no")
    assert world.pool.take(1) is None
    await world.pool.fill(1)
    await world.pool.close()
    assert world.open == 0


async def test_nothing_is_made_ahead_while_a_caller_is_served_by_another_pool_of_the_machine() -> None:
    load = Load()
    world = World(BOUNDS._replace(of_a_kind=1, enough=0), load)
    with load.serving():
        world.pool.refill(1)
        await asyncio.sleep(2 * pools.REFILL_AFTER_SECONDS)
        assert world.made == []
    await until(lambda: world.pool.counts() == [1])
    await world.pool.close()


async def test_one_that_is_made_while_the_pool_closes_is_closed() -> None:
    world = World(BOUNDS._replace(of_a_kind=1, kinds=1))
    world.pool.refill(1)
    world.pool.refill(2)  # the first kind is dropped while it is being made
    await asyncio.sleep(pools.REFILL_AFTER_SECONDS)
    await world.pool.close()
    assert world.open == 0
