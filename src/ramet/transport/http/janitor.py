"""Background cleanup: closes collected sandboxes, and undoes calls that were given up on an event loop."""

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
    """One daemon thread, started on first use. At exit the process waits for it briefly."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Start over in a forked child, which has neither the thread nor its work."""
        self._lock = threading.Lock()
        self._started = False
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def close(self, server: Server, some_id: str, kind: int, field: str) -> None:
        """Close a sandbox or a snapshot.

        Finalizers call it in the middle of any code, hence a SimpleQueue, whose `put` is reentrant.
        """
        self._do(lambda: _tell(server, encode(kind, {field: some_id})))

    def run_errand(self, server: Server, errand: Errand) -> threading.Event:
        """Run cleanup in the thread. Return an event that is set when it was done or has failed."""
        done = threading.Event()

        def run() -> None:
            try:
                run_errand(server, errand)
            finally:
                done.set()

        self._do(run)
        # `_do` dropped the work, so the thread will not set the event.
        if sys.is_finalizing():
            done.set()
        return done

    def _do(self, work: Callable[[], None]) -> None:
        if sys.is_finalizing():
            return  # what is left open ends when its lifetime runs out
        self._work.put(work)
        # Never wait for the lock: a finalizer may run inside this very function and would wait for its own thread. Who
        # fails to take it leaves the start to the holder.
        if not self._started and self._lock.acquire(blocking=False):
            try:
                if not self._started:
                    threading.Thread(target=self._run, name="ramet janitor", daemon=True).start()
                    self._started = True
            except RuntimeError:
                pass  # the interpreter is shutting down
            finally:
                self._lock.release()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            with suppress(Exception):
                work()

    def finish(self) -> None:
        """Wait until all work queued so far is done, or for a few seconds."""
        if self._started:
            done = threading.Event()
            self._work.put(done.set)
            done.wait(_EXIT_SECONDS)


def _tell(server: Server, request: bytes) -> None:
    with suppress(RametError, OSError):
        ask_urgently(server, request)


janitor = Janitor()
atexit.register(janitor.finish)
