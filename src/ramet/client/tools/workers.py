"""Where tools run: threads for ordinary functions, one event loop for coroutines of programs that have none.

State of the module: the threads and the loop, shared by all sandboxes of this process, started when first needed. All
are daemons: a tool that hangs keeps no interpreter alive. A forked child has none of them, and starts its own.
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
    """Threads that do what they are given, in order; as many at once as there are, and never more than allowed.

    What is done for one sandbox may hang, all of it: it never takes more than its share.
    """

    def __init__(self, threads_at_most: int = THREADS_AT_MOST, of_a_sandbox: int = THREADS_OF_A_SANDBOX) -> None:
        self._threads_at_most = threads_at_most
        self._of_a_sandbox = of_a_sandbox
        self.forked()

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._work: SimpleQueue[tuple[str, Callable[[], object]]] = SimpleQueue()
        # By sandbox: what is being done, or will be next, and what has to wait for that.
        self._begun: Counter[str] = Counter()
        self._waiting: dict[str, deque[Callable[[], object]]] = {}
        self._threads = 0
        self._free = 0  # threads that wait, less the work that waits for them

    def __repr__(self) -> str:
        return f"<Workers {self._threads} threads, {self._free} free>"

    def submit(self, work: Callable[[], object], sandbox_id: str = "") -> None:
        """Have it done, for this sandbox if for any. It must not raise."""
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
                    traceback.print_exc()  # a mistake of ours, which must not cost a thread
                del work  # what it holds must not live until the next
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
    """An event loop in a thread, for the coroutines of blocking callers."""

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
# Each reads for a caller who waits, so they need no bound. Were they workers, all workers might wait for one another.
readers = Workers(sys.maxsize)
loop_thread = LoopThread()


def _after_fork_in_child() -> None:
    workers.forked()
    readers.forked()
    loop_thread.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
