"""Threads in which tools run, and an event loop for coroutines of programs that have no loop.

State of the module: the threads and the loop, shared by all sandboxes of this process, started when first needed. All
are daemon threads, so that a tool that hangs does not keep the interpreter alive. A forked child has none of these
threads, and starts its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable
from queue import SimpleQueue

THREADS_AT_MOST = 1024
THREADS_OF_A_SANDBOX = 64


class Workers:
    """A pool of threads that grows up to a limit, with a limit for each sandbox.

    The tools of one sandbox may all hang; the second limit leaves threads to the others.
    """

    def __init__(self, threads_at_most: int = THREADS_AT_MOST, of_a_sandbox: int = THREADS_OF_A_SANDBOX) -> None:
        self._threads_at_most = threads_at_most
        self._of_a_sandbox = of_a_sandbox
        self.forked()

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._work: SimpleQueue[tuple[str, Callable[[], object]]] = SimpleQueue()
        # By sandbox: the number of jobs that have or get a thread, and the jobs that wait for one of those to end.
        self._begun: Counter[str] = Counter()
        self._waiting: dict[str, deque[Callable[[], object]]] = {}
        self._threads = 0
        self._free = 0  # idle threads minus jobs in the queue; negative if jobs wait

    def __repr__(self) -> str:
        return f"<Workers {self._threads} threads, {self._free} free>"

    def submit(self, work: Callable[[], object], sandbox_id: str = "") -> None:
        """Run the work in a thread, counted for this sandbox unless the id is empty. The work must not raise."""
        with self._lock:
            if sandbox_id:
                if self._begun[sandbox_id] >= self._of_a_sandbox:
                    self._waiting.setdefault(sandbox_id, deque()).append(work)
                    return
                self._begun[sandbox_id] += 1
            self._free -= 1
            start = self._free < 0 and self._threads < self._threads_at_most
            if start:
                self._threads += 1
                self._free += 1
        self._work.put((sandbox_id, work))
        if start:
            threading.Thread(target=self._run, name="ramet tool", daemon=True).start()

    def _run(self) -> None:
        while True:
            sandbox_id, work = self._work.get()
            while True:
                try:
                    work()
                except Exception:
                    traceback.print_exc()  # a bug of ours, which must not end the thread
                del work  # else what it refers to would live until the next job
                with self._lock:
                    if sandbox_id not in self._waiting:
                        self._free += 1
                        self._done(sandbox_id)
                        break
                    work = self._next_of(sandbox_id)

    def _next_of(self, sandbox_id: str) -> Callable[[], object]:
        waiting = self._waiting[sandbox_id]
        work = waiting.popleft()
        if not waiting:
            del self._waiting[sandbox_id]
        return work

    def _done(self, sandbox_id: str) -> None:
        self._begun[sandbox_id] -= 1
        if self._begun[sandbox_id] <= 0:
            del self._begun[sandbox_id]


class LoopThread:
    """An event loop in a thread, for coroutine tools of callers that have no loop."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=_run_forever, args=(loop,), name="ramet tools", daemon=True).start()
                self._loop = loop
            return self._loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


workers = Workers()
# Each thread reads for a caller that waits, so callers bound their number. If ``workers`` did this, all of them could
# run tools that wait for readers, and no thread would be left to read.
readers = Workers(sys.maxsize)
loop_thread = LoopThread()


def _after_fork_in_child() -> None:
    workers.forked()
    readers.forked()
    loop_thread.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
