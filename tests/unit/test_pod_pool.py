"""Pods that wait: a few kinds of them, a bounded number in all, and none for long that nobody asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ramet.isolation import pod_pool
from ramet.isolation.pod_pool import PodKind, PodPool
from ramet.protocol.specs import Interpreter, Limits

INTERPRETER = Interpreter("/usr/bin/python3", "3.12.1", (), (), None)


def kind(number: int) -> PodKind:
    return PodKind(INTERPRETER, Limits((256 + number) << 20, 100, 1.0, 1 << 30))


class ScriptedPod:
    def __init__(self) -> None:
        self.alive = True
        self.closed = False

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True


class World:
    """A pool, and all pods that it ever made."""

    def __init__(self, ready: int = 4) -> None:
        self.made: list[ScriptedPod] = []
        self.error: Exception | None = None
        self.pool: PodPool[ScriptedPod] = PodPool(self._make, ready)

    async def _make(self, _: PodKind) -> ScriptedPod:
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
        await world.pool.fill(kind(number))
        assert len(world.pool) <= pod_pool.MOST_KINDS * 4
    await until(lambda: world.open == len(world.pool))
    assert world.pool.counts() == [4] * pod_pool.MOST_KINDS
    await world.pool.close()
    assert world.open == 0


async def test_kinds_that_nobody_asks_for_are_closed_but_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_pool, "UNUSED_SECONDS", 0.05)
    world = World()
    for number in range(3):
        await world.pool.fill(kind(number))
    await until(lambda: world.pool.counts() == [4] and world.open == 4)
    assert world.pool.take(kind(2)) is not None
    await world.pool.close()


async def test_all_that_wait_are_bounded_together_and_older_kinds_make_room() -> None:
    world = World()
    for number in range(pod_pool.MOST_KINDS):
        world.pool.expect(kind(number), 100)
        await world.pool.fill(kind(number))
        assert len(world.pool) <= pod_pool.MOST_READY_IN_ALL
    assert world.pool.counts()[-1] == pod_pool.MOST_READY
    await world.pool.close()
    assert world.open == 0


async def test_what_waits_is_given_up_for_room_and_not_made_again_at_once() -> None:
    world = World()
    assert not await world.pool.give_up()
    world.pool._crowded_until = 0.0
    await world.pool.fill(kind(1))
    assert await world.pool.give_up()
    assert (world.open, world.pool.crowded) == (0, True)
    await world.pool.fill(kind(1))
    assert len(world.pool) == 0
    assert not await world.pool.give_up()
    await world.pool.close()


async def test_a_dead_pod_is_given_to_nobody_and_one_that_cannot_be_made_is_no_error() -> None:
    world = World(ready=1)
    await world.pool.fill(kind(1))
    world.made[0].alive = False
    world.error = OSError("no")
    assert world.pool.take(kind(1)) is None
    await world.pool.fill(kind(1))
    await world.pool.close()
    assert world.open == 0
