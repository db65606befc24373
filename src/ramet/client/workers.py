"""Where tools run: threads for ordinary functions, one event loop for coroutines of programs that have none.

State of the module: the threads and the loop, shared by all sandboxes of this process, started when first needed. All
are daemons: a tool that hangs keeps no interpreter alive. A forked child has none of them, and starts its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue

THREADS_AT_MOST = 64


class Workers:
    """Threads that do what they are given, in order; as many at once as there are, and never more than allowed."""

    def __init__(self, threads_at_most: int = THREADS_AT_MOST) -> None:
        self._threads_at_most = threads_at_most
        self.forked()

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._threads = 0
        self._free = 0  # threads that wait, less the work that waits for them

    def __repr__(self) -> str:
        return f"<Workers {self._threads} threads, {self._free} free>"

    def submit(self, work: Callable[[], object]) -> None:
        """Have it done. It must not raise."""
        with self._lock:
            self._free -= 1
            start = self._free < 0 and self._threads < self._threads_at_most
            if start:
                self._threads += 1
                self._free += 1
        self._work.put(work)
        if start:
            threading.Thread(target=self._run, name="ramet tool", daemon=True).start()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            except Exception:
                traceback.print_exc()  # a mistake of ours, which must not cost a thread
            del work  # what it holds must not live until the next
            with self._lock:
                self._free += 1


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
loop_thread = LoopThread()


def _after_fork_in_child() -> None:
    workers.forked()
    loop_thread.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
