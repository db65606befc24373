"""Pods that are made ahead of time: a few of each kind that was asked for lately, and not more than a bound of all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from ramet.protocol.specs import Interpreter, Limits

LOW = 2  # fewer are not enough for whoever goes on asking: then the next is made at once
MOST_READY = 16  # of one kind, for forks that are expected
MOST_KINDS = 4
MOST_READY_IN_ALL = 32
EXPECTED_SECONDS = 60.0
UNUSED_SECONDS = 60.0  # pods of a kind that nobody asked for in this time are closed, except of the last one
CROWDED_SECONDS = 10.0  # after the host had no room, nothing is made ahead for so long
REFILL_AFTER_SECONDS = 0.01  # whoever took a pod is about to use it: making the next at once would slow that down


class Ready(Protocol):
    """What the pool needs of a pod."""

    @property
    def alive(self) -> bool: ...
    async def close(self) -> None: ...


class PodKind(NamedTuple):
    """Pods that can stand in for one another. Limits are fixed when a pod is made: whoever asks chooses the kind."""

    interpreter: Interpreter
    limits: Limits


T = TypeVar("T", bound=Ready)


@dataclass(slots=True, eq=False)
class _Shelf(Generic[T]):
    """The pods of one kind."""

    used: float
    pods: list[T] = field(default_factory=list)
    expected: int = 0
    expected_until: float = 0.0
    refill: asyncio.Task[None] | None = None


class PodPool(Generic[T]):
    """Owns the pods that wait. ``ready``: how many of each kind; ``make`` makes one, or raises."""

    def __init__(self, make: Callable[[PodKind], Awaitable[T]], ready: int) -> None:
        self._make = make
        self.ready = ready
        self._shelves: dict[PodKind, _Shelf[T]] = {}  # the kind that was asked for last comes last
        self._waiting = 0  # callers whom making things ahead would slow down
        self._disturbed_until = 0.0
        self._crowded_until = 0.0
        self._leaving: set[asyncio.Task[None]] = set()
        self._tidying: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return sum(len(shelf.pods) for shelf in self._shelves.values())

    def counts(self) -> list[int]:
        """How many wait, by kind."""
        return [len(shelf.pods) for shelf in self._shelves.values()]

    # Taking

    def take(self, kind: PodKind) -> T | None:
        """A pod that waits, if there is one. The next are made soon."""
        shelf = self._shelf(kind)
        while shelf.pods:
            pod = shelf.pods.pop()
            if pod.alive:
                self.refill(kind)
                return pod
            self._discard(pod)  # the host's kernel may kill anybody
        return None

    def _shelf(self, kind: PodKind) -> _Shelf[T]:
        """Whoever asks for ever new kinds gets no more room than others: the kinds that are left over make room."""
        now = asyncio.get_running_loop().time()
        shelf = self._shelves[kind] = self._shelves.pop(kind) if kind in self._shelves else _Shelf(now)
        shelf.used = now
        for oldest in list(self._shelves)[:-MOST_KINDS]:
            self._drop(oldest)
        if not self._closed and (self._tidying is None or self._tidying.done()):
            self._tidying = asyncio.create_task(self._tidy())
        return shelf

    def expect(self, kind: PodKind, count: int) -> None:
        """Somebody asks for so many at once and may do so again: keep as many ready, for a while."""
        shelf = self._shelf(kind)
        shelf.expected = max(self._wanted(shelf), min(count, MOST_READY))
        shelf.expected_until = asyncio.get_running_loop().time() + EXPECTED_SECONDS

    def _wanted(self, shelf: _Shelf[T]) -> int:
        expected = shelf.expected if asyncio.get_running_loop().time() < shelf.expected_until else 0
        return max(self.ready, expected)

    # Filling

    def refill(self, kind: PodKind, after_seconds: float = REFILL_AFTER_SECONDS) -> None:
        shelf = self._shelf(kind)
        if not self._closed and (shelf.refill is None or shelf.refill.done()):
            shelf.refill = asyncio.create_task(self._fill(kind, shelf, after_seconds))

    async def fill(self, kind: PodKind) -> None:
        """Wait until there is the full number."""
        self.refill(kind, 0.0)
        task = self._shelves[kind].refill
        if task is not None:
            await task

    async def _fill(self, kind: PodKind, shelf: _Shelf[T], after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        # What cannot be made ahead is tried again, and told, when somebody asks for it.
        with contextlib.suppress(Exception):
            while self._shelves.get(kind) is shelf and len(shelf.pods) < self._wanted(shelf) and not self._closed:
                if self.crowded or not self._room_for(shelf):
                    return
                if self._waiting or (len(shelf.pods) >= LOW and not self.idle):
                    await asyncio.sleep(REFILL_AFTER_SECONDS / 2)
                    continue
                pod = await self._make(kind)
                if self._shelves.get(kind) is not shelf or self._closed:  # others were asked for meanwhile
                    await pod.close()
                    return
                shelf.pods.append(pod)

    def _room_for(self, shelf: _Shelf[T]) -> bool:
        """Whether all that wait may be one more. Kinds that were asked for longer ago make room."""
        for other in self._shelves.values():
            if len(self) < MOST_READY_IN_ALL or other is shelf:
                break
            while other.pods and len(self) >= MOST_READY_IN_ALL:
                self._discard(other.pods.pop())
        return len(self) < MOST_READY_IN_ALL

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Inside, and for a moment afterwards, nothing is made ahead of time."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._disturbed_until = asyncio.get_running_loop().time() + REFILL_AFTER_SECONDS

    @property
    def idle(self) -> bool:
        """Whether nobody has asked to be undisturbed for a moment: whoever got a sandbox is about to use it."""
        return not self._waiting and asyncio.get_running_loop().time() >= self._disturbed_until

    async def wait_until_idle(self) -> None:
        while not self.idle:
            await asyncio.sleep(REFILL_AFTER_SECONDS / 2)

    # Closing

    async def _tidy(self) -> None:
        """Close what nobody asks for any more, until only the last kind is left, with its usual number."""
        loop = asyncio.get_running_loop()
        while len(self._shelves) > 1 or any(shelf.expected for shelf in self._shelves.values()):
            await asyncio.sleep(min(UNUSED_SECONDS, EXPECTED_SECONDS) / 4)
            for kind in list(self._shelves)[:-1]:
                if loop.time() - self._shelves[kind].used >= UNUSED_SECONDS:
                    self._drop(kind)
            for shelf in self._shelves.values():
                if loop.time() >= shelf.expected_until:
                    shelf.expected = 0
                    while len(shelf.pods) > self.ready:
                        self._discard(shelf.pods.pop())

    def _drop(self, kind: PodKind) -> None:
        for pod in self._shelves.pop(kind).pods:
            self._discard(pod)

    def _discard(self, pod: T) -> None:
        task = asyncio.create_task(pod.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    @property
    def crowded(self) -> bool:
        """The host had no room a moment ago: nothing is made ahead."""
        return asyncio.get_running_loop().time() < self._crowded_until

    async def give_up(self) -> bool:
        """The host has no room: close all that wait. Whether there was anything to close."""
        self._crowded_until = asyncio.get_running_loop().time() + CROWDED_SECONDS
        for shelf in self._shelves.values():
            while shelf.pods:
                self._discard(shelf.pods.pop())
        leaving = list(self._leaving)
        await asyncio.gather(*leaving, return_exceptions=True)
        return bool(leaving)

    async def close(self) -> None:
        self._closed = True
        tasks = [self._tidying, *(shelf.refill for shelf in self._shelves.values())]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for kind in list(self._shelves):
            self._drop(kind)
        await asyncio.gather(*self._leaving, return_exceptions=True)
