"""Locks by name: one at a time, in the order of the calls."""

from __future__ import annotations

import asyncio

from ramet.isolation.named_locks import NamedLocks


async def test_those_that_wait_come_in_their_order_and_newcomers_after_them() -> None:
    locks = NamedLocks()
    order: list[int] = []
    inside = 0

    async def work(number: int) -> None:
        nonlocal inside
        async with locks.held("one"):
            inside += 1
            assert inside == 1
            order.append(number)
            await asyncio.sleep(0)
            inside -= 1
        if number < 3:  # comes back in the moment in which the lock is free, with others waiting for it
            await work(number + 10)

    await asyncio.gather(*(work(number) for number in range(6)))
    assert order == [0, 1, 2, 3, 4, 5, 10, 11, 12]
    assert repr(locks) == "<NamedLocks, 0 in use>"


async def test_other_names_are_not_waited_for_and_one_that_is_cancelled_leaves_nothing() -> None:
    locks = NamedLocks()
    async with locks.held("one"):
        waiting = asyncio.create_task(locks.held("one").__aenter__())
        await asyncio.sleep(0)
        async with locks.held("other"):
            pass
        waiting.cancel()
        await asyncio.wait([waiting])
    assert repr(locks) == "<NamedLocks, 0 in use>"
