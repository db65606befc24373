"""Long-running work on files of sandboxes: in its own threads, one job per owner at a time, each of them stoppable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import TypeVar

from ramet.protocol.lazy_dataclasses import dataclass

T = TypeVar("T")

_THREADS = 2


class WalkCancelled(Exception):
    """Raised inside a walk that was asked to stop."""


class Stop:
    """Asks a walk to stop, from any thread. Python code calls `check` between steps; C code reads ``flag`` itself."""

    def __init__(self) -> None:
        # A byte in memory rather than an Event: C code polls it without holding the GIL.
        self.flag = bytearray(1)

    def ask(self) -> None:
        self.flag[0] = 1

    def check(self) -> None:
        if self.flag[0]:
            raise WalkCancelled


@dataclass(slots=True)
class _Line:
    """The queue of one owner's jobs."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Walks:
    """Runs work that reads or copies trees of files, whose size is chosen by untrusted code.

    It does not use the event loop's default pool: that one makes pods, answers ``info()`` and enters terminals, and
    must never be full of walks. An owner uses at most one thread, so that the other one is left for everybody else.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ramet-walks")
        self._lines: dict[str, _Line] = {}
        self._running: set[Stop] = set()

    async def run(self, owner: str, work: Callable[[Stop], T], undo: Callable[[T], object] = lambda _: None) -> T:
        """Run ``work`` in a thread and return its result.

        When cancelled, waits until the work has stopped, and calls ``undo`` with a result that it produced all the
        same.
        """
        async with self._turn(owner):
            stop = Stop()
            # Known to `close` before the job starts.
            self._running.add(stop)
            job = self._threads.submit(work, stop)
            # Runs in the worker thread. `close` iterates over a copy, and single set operations are atomic.
            job.add_done_callback(lambda _: self._running.discard(stop))
            waiting = asyncio.wrap_future(job)
            # Shielded: cancelling the wrapped future would leave the thread running and its result without an owner.
            try:
                return await asyncio.shield(waiting)
            except asyncio.CancelledError:
                stop.ask()
                # A job that has not started is cancelled at once: its sandbox must not wait for the walks of others.
                if not job.cancel():
                    # As a callback, so that a second cancellation during the wait below still leads to the undo.
                    waiting.add_done_callback(lambda done: _undo(done, undo))
                    await asyncio.wait([waiting])
                raise

    @contextlib.asynccontextmanager
    async def _turn(self, owner: str) -> AsyncIterator[None]:
        """Hold the owner's turn.

        The last user removes its queue, so that the table does not grow with every owner ever seen.
        """
        line = self._lines.setdefault(owner, _Line())
        line.users += 1
        try:
            async with line.lock:
                yield
        # Also after a cancellation while waiting for the lock.
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[owner]

    def close(self) -> None:
        """Ask all walks to stop. Does not wait for them: the process is ending."""
        for stop in list(self._running):
            stop.ask()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _undo(done: asyncio.Future[T], undo: Callable[[T], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())
