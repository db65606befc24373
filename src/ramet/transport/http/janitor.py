"""What nobody waits for: closing what was forgotten, and undoing calls that were given up on an event loop."""

from __future__ import annotations

import atexit
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from ramet.errors import RametError
from ramet.protocol.frames import encode
from ramet.transport.http.blocking import ask_urgently, run_errand
from ramet.transport.http.call import Errand
from ramet.transport.http.server import Server

_EXIT_SECONDS = 5.0


class Janitor:
    """One thread, started when there is something to do. It keeps no process alive, but is waited for a little."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """In a forked child, which has no thread and none of the work."""
        self._lock = threading.Lock()
        self._started = False
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def close(self, server: Server, some_id: str, kind: int, field: str) -> None:
        """End a sandbox or a snapshot. For finalizers: a queue that may be put to in the middle of anything."""
        self._do(lambda: _tell(server, encode(kind, {field: some_id})))

    def run_errand(self, server: Server, errand: Errand) -> threading.Event:
        """Gives an event that says when it was done, or could not be."""
        done = threading.Event()

        def run() -> None:
            try:
                run_errand(server, errand)
            finally:
                done.set()

        self._do(run)
        if sys.is_finalizing():
            done.set()
        return done

    def _do(self, work: Callable[[], None]) -> None:
        if sys.is_finalizing():
            return  # what is left ends with its lifetime
        self._work.put(work)
        # Without waiting for the lock: a finalizer may run inside this very function.
        if not self._started and self._lock.acquire(blocking=False):
            try:
                if not self._started:
                    threading.Thread(target=self._run, name="ramet janitor", daemon=True).start()
                    self._started = True
            except RuntimeError:
                pass  # the interpreter is ending
            finally:
                self._lock.release()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            with suppress(Exception):
                work()

    def finish(self) -> None:
        """All that was asked for so far is done, or has taken too long."""
        if self._started:
            done = threading.Event()
            self._work.put(done.set)
            done.wait(_EXIT_SECONDS)


def _tell(server: Server, request: bytes) -> None:
    with suppress(RametError, OSError):
        ask_urgently(server, request)


janitor = Janitor()
atexit.register(janitor.finish)
