"""Long work on files of sandboxes: threads of its own, one job of an owner at a time, and each can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

_THREADS = 2


class Stopped(Exception):
    """Nobody waits for this walk any more."""


class Stop:
    """Asks a walk to end, from any thread. A walk looks at it between two steps; C code looks at ``flag`` itself."""

    def __init__(self) -> None:
        self.flag = bytearray(1)

    def ask(self) -> None:
        self.flag[0] = 1

    def check(self) -> None:
        if self.flag[0]:
            raise Stopped


@dataclass(slots=True)
class _Line:
    """The jobs of one owner, one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Walks:
    """Runs work that reads or copies trees of files, whose size is chosen by code that nobody trusts.

    Not in the event loop's own pool: that one makes pods, answers ``info()`` and enters terminals, and must never be
    full of walks. An owner has one thread at most, so that the other one is there for everybody else.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ramet-walks")
        self._lines: dict[str, _Line] = {}
        self._running: set[Stop] = set()

    async def run(self, owner: str, work: Callable[[Stop], T], undo: Callable[[T], object] = lambda _: None) -> T:
        """The result of ``work``. When cancelled, this waits until the work has stopped, and undoes what it made."""
        async with self._turn(owner):
            stop = Stop()
            self._running.add(stop)
            job = self._threads.submit(work, stop)
            job.add_done_callback(lambda _: self._running.discard(stop))
            waiting = asyncio.wrap_future(job)
            try:
                return await asyncio.shield(waiting)
            except asyncio.CancelledError:
                stop.ask()
                # One that has not begun is over at once: its sandbox must not wait for the walks of others.
                if not job.cancel():
                    waiting.add_done_callback(lambda done: _undo(done, undo))
                    await asyncio.wait([waiting])
                raise

    @contextlib.asynccontextmanager
    async def _turn(self, owner: str) -> AsyncIterator[None]:
        line = self._lines.setdefault(owner, _Line())
        line.users += 1
        try:
            async with line.lock:
                yield
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[owner]

    def close(self) -> None:
        for stop in list(self._running):
            stop.ask()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _undo(done: asyncio.Future[T], undo: Callable[[T], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())
