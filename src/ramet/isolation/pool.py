"""A pool of things that take long to make: empty pods, and sandboxes that were thawed ahead of time.

A few of each kind that was asked for lately wait for their users, and not more than a bound of all kinds together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from dataclasses import field
from typing import Generic, NamedTuple, Protocol, TypeVar

from ramet.protocol.lazy_dataclasses import dataclass

EXPECTED_SECONDS = 60.0
UNUSED_SECONDS = 60.0  # a kind that was not asked for in this time is closed, except for the last one
CLOSE_SECONDS = 20.0  # a process that the kernel does not let go of must not hold up callers, or the end of the engine
CROWDED_SECONDS = 10.0  # after the host had no room, nothing is made ahead for this long
REFILL_AFTER_SECONDS = 0.01  # a caller that took a pod is about to use it: making the next at once would slow that down


class Poolable(Protocol):
    """The part of a pod or a sandbox that the pool uses."""

    @property
    def alive(self) -> bool: ...
    async def close(self) -> None: ...


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Poolable)


class PoolBounds(NamedTuple):
    """How much a pool keeps, and how eagerly it makes more."""

    of_a_kind: int  # the usual number of each kind
    kinds: int
    in_all: int
    of_a_kind_expected: int  # the most of one kind, after ``expect``
    enough: int  # with fewer of a kind the next is made at once; the others wait until no caller is being served
    refill_after_seconds: float


class Load:
    """Says when nothing must be made ahead of time. The pools of one machine share one.

    Either a caller is being served, whom making more would slow down, or the host had no room a moment ago.
    """

    def __init__(self) -> None:
        self._serving = 0
        self._serving_until = 0.0
        self._crowded_until = 0.0

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Inside, and for a moment afterwards, the machine is not idle: the caller is about to use what it got."""
        self._serving += 1
        try:
            yield
        finally:
            self._serving -= 1
            self._serving_until = asyncio.get_running_loop().time() + REFILL_AFTER_SECONDS

    @property
    def busy(self) -> bool:
        """Whether a caller is being served at this moment."""
        return self._serving > 0

    @property
    def idle(self) -> bool:
        return not self._serving and asyncio.get_running_loop().time() >= self._serving_until

    @property
    def crowded(self) -> bool:
        """Whether the host had no room a moment ago."""
        return asyncio.get_running_loop().time() < self._crowded_until

    def note_crowded(self) -> None:
        self._crowded_until = asyncio.get_running_loop().time() + CROWDED_SECONDS


@dataclass(slots=True, eq=False)
class _Shelf(Generic[T]):
    """What waits of one kind."""

    used: float
    ready: list[T] = field(default_factory=list)
    expected: int = 0
    expected_until: float = 0.0
    refill: asyncio.Task[None] | None = None


class Pool(Generic[K, T]):
    """Owns what waits, until it is taken. ``make`` makes one of a kind, or raises.

    Things of equal kinds can stand in for one another.
    """

    def __init__(self, make: Callable[[K], Awaitable[T]], bounds: PoolBounds, load: Load | None = None) -> None:
        self._make = make
        self.bounds = bounds
        self.load = load or Load()
        self._shelves: dict[K, _Shelf[T]] = {}  # the kind that was asked for last comes last
        self._refills: set[asyncio.Task[None]] = set()  # also of kinds that were dropped meanwhile
        self._leaving: set[asyncio.Task[None]] = set()
        self._tidying: asyncio.Task[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool {len(self)} ready of {len(self._shelves)} kinds>"

    def __len__(self) -> int:
        return sum(len(shelf.ready) for shelf in self._shelves.values())

    def counts(self) -> list[int]:
        """How many wait, by kind."""
        return [len(shelf.ready) for shelf in self._shelves.values()]

    # Taking

    def take(self, kind: K) -> T | None:
        """One that waits, if there is one. The next is made soon."""
        shelf = self._shelf(kind)
        while shelf.ready:
            taken = shelf.ready.pop()
            if taken.alive:
                self.refill(kind)
                return taken
            self._discard(taken)  # the kernel of the host may kill any process while it waits
        return None

    def _shelf(self, kind: K) -> _Shelf[T]:
        """The shelf of a kind. Kinds asked for longest ago go: a caller with ever new kinds gets no more room."""
        now = asyncio.get_running_loop().time()
        shelf = self._shelves[kind] = self._shelves.pop(kind) if kind in self._shelves else _Shelf(now)
        shelf.used = now
        for oldest in list(self._shelves)[: -self.bounds.kinds]:
            self._drop(oldest)
        if not self._closed and (self._tidying is None or self._tidying.done()):
            self._tidying = asyncio.create_task(self._tidy())
        return shelf

    def expect(self, kind: K, count: int) -> None:
        """Keep this many ready for a while: a caller asks for as many at once, and may do so again."""
        shelf = self._shelf(kind)
        shelf.expected = max(self._wanted(shelf), min(count, self.bounds.of_a_kind_expected))
        shelf.expected_until = asyncio.get_running_loop().time() + EXPECTED_SECONDS

    def _wanted(self, shelf: _Shelf[T]) -> int:
        expected = shelf.expected if asyncio.get_running_loop().time() < shelf.expected_until else 0
        return max(self.bounds.of_a_kind, expected)

    # Filling

    def refill(self, kind: K) -> None:
        """Make more of a kind in the background, unless that is under way."""
        self._refill(kind, self.bounds.refill_after_seconds)

    def _refill(self, kind: K, after_seconds: float) -> None:
        shelf = self._shelf(kind)
        if not self._closed and (shelf.refill is None or shelf.refill.done()):
            shelf.refill = asyncio.create_task(self._fill(kind, shelf, after_seconds))
            self._refills.add(shelf.refill)
            shelf.refill.add_done_callback(self._refills.discard)

    async def fill(self, kind: K) -> None:
        """Wait until the wanted number of a kind is ready, or could not be made."""
        self._refill(kind, 0.0)
        task = self._shelves[kind].refill
        if task is not None:
            await task

    async def _fill(self, kind: K, shelf: _Shelf[T], after_seconds: float) -> None:
        if after_seconds:
            await asyncio.sleep(after_seconds)
        # An error has no caller here: the next caller makes its own and gets the error.
        with contextlib.suppress(Exception):
            while self._shelves.get(kind) is shelf and len(shelf.ready) < self._wanted(shelf) and not self._closed:
                if self.load.crowded or not self._room_for(shelf):
                    return
                if self.load.busy or (len(shelf.ready) >= self.bounds.enough and not self.load.idle):
                    await asyncio.sleep(REFILL_AFTER_SECONDS / 2)
                    continue
                made = await self._make(kind)
                # While it was made, other kinds may have pushed this one out, or the pool may have closed.
                if self._shelves.get(kind) is not shelf or self._closed:
                    await made.close()
                    return
                shelf.ready.append(made)

    def _room_for(self, shelf: _Shelf[T]) -> bool:
        """Whether one more may wait. Kinds that were asked for longer ago make room."""
        for other in self._shelves.values():
            if len(self) < self.bounds.in_all or other is shelf:
                break
            while other.ready and len(self) >= self.bounds.in_all:
                self._discard(other.ready.pop())
        return len(self) < self.bounds.in_all

    # Closing

    async def _tidy(self) -> None:
        """Close kinds that are not asked for any more, until only the last is left, with its usual number."""
        loop = asyncio.get_running_loop()
        while len(self._shelves) > 1 or any(shelf.expected for shelf in self._shelves.values()):
            await asyncio.sleep(min(UNUSED_SECONDS, EXPECTED_SECONDS) / 4)
            for kind in list(self._shelves)[:-1]:
                if loop.time() - self._shelves[kind].used >= UNUSED_SECONDS:
                    self._drop(kind)
            for shelf in self._shelves.values():
                if loop.time() >= shelf.expected_until:
                    shelf.expected = 0
                    while len(shelf.ready) > self.bounds.of_a_kind:
                        self._discard(shelf.ready.pop())

    def _drop(self, kind: K) -> None:
        for waiting in self._shelves.pop(kind).ready:
            self._discard(waiting)

    def _discard(self, waiting: T) -> None:
        task = asyncio.create_task(waiting.close())
        self._leaving.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: no caller waits for it

    async def give_up(self) -> bool:
        """The host has no room: close all that wait. Returns whether there was anything to close."""
        self.load.note_crowded()
        for shelf in self._shelves.values():
            while shelf.ready:
                self._discard(shelf.ready.pop())
        leaving = list(self._leaving)
        await self._wait_for(leaving)
        return bool(leaving)

    async def _wait_for(self, leaving: Sequence[asyncio.Task[None]]) -> None:
        # `wait`, not `gather`: a caller that is cancelled here must not cancel the closing half-way.
        if leaving:
            await asyncio.wait(leaving, timeout=CLOSE_SECONDS)

    async def close(self) -> None:
        self._closed = True
        running = list(self._refills) if self._tidying is None else [self._tidying, *self._refills]
        for task in running:
            task.cancel()
        # They end first: a refill that has just made one would otherwise put it on a shelf after the shelves are empty.
        await asyncio.gather(*running, return_exceptions=True)
        for kind in list(self._shelves):
            self._drop(kind)
        await self._wait_for(list(self._leaving))
