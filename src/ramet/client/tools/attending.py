"""Runs a cell whose code calls tools, in the caller's thread as long as they are quick.

    quick tools    RUN -> TOOL_CALL -> tool -> TOOL_ANSWER -> TOOL_CALL -> tool -> TOOL_ANSWER ... RESULT
    others         the same, but each tool runs in a thread of the workers, and this one goes on reading

To hand a call to another thread costs more than all the rest of it, since one thread of Python waits for the other. So
a tool that took hardly any time when it was called last runs in the very thread that has read its call. Should it take
long after all, it must not keep other calls waiting: after a moment another thread goes on reading in this one's
place, which comes back to hear of the end. Where the caller waits only so long, no tool runs in its thread.
"""

from __future__ import annotations

import os
import threading
import time
from time import perf_counter
from typing import Any, Protocol

from ramet.client.operations import RECEIVE, Operation, Step, ToolCalled, ToolCancelled
from ramet.client.tools.workers import readers, workers
from ramet.transport.seam import Link

_MOMENT_SECONDS = 0.004
_QUIET_SECONDS = 0.1


class Sender(Protocol):
    """Carries a frame to the engine."""

    def send(self, data: bytes) -> None: ...


class Call(Protocol):
    """A call of a tool that runs in a thread."""

    @property
    def sandbox_id(self) -> str: ...

    @property
    def quick(self) -> bool:
        """The tool took hardly any time when it was called last, and may take the caller's own."""

    def run(self, sender: Sender | None = None) -> None:
        """Answer it: this way if the answer is short, else over a link of its own. Raises nothing.

        Only a KeyboardInterrupt, which may hit the main thread anywhere, comes through.
        """


class Answering(Protocol):
    """Whoever answers the calls of a cell."""

    def take(self, step: ToolCalled | ToolCancelled) -> None:
        """A call, which is answered some time, or the news that nobody waits for one any more."""

    def accept(self, step: ToolCalled) -> Call | None:
        """To be run in a thread by whoever asks; None: it is on its way already."""

    def end(self) -> None:
        """The cell is over."""


class Attendance:
    """One call, from its first tool call on. Made and waited for by the caller."""

    def __init__(self, link: Link, operation: Operation[Any], answering: Answering) -> None:
        self._link = _SharedLink(link)
        self._operation = operation
        self._answering = answering
        self._over = threading.Lock()
        self._over.acquire()
        self._value: object = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        # Of the thread that reads: who was relieved has another number than this.
        self._reader = 0
        self._relieved = False
        self._busy_since: float | None = None  # with a tool, in the thread that reads

    def result(self, step: Step) -> Any:
        """What the operation returns, from this step on."""
        watch.add(self)
        try:
            self._read(0, step)
            self._over.acquire()
        finally:
            watch.remove(self)
            self._link.leave()
        if self._error is not None:
            raise self._error
        return self._value

    def relieve_if_busy(self, now: float) -> bool:
        """Have another thread go on reading if this one has long been at a tool. True if it is at one."""
        with self._lock:
            since = self._busy_since
            if since is None or now - since < _MOMENT_SECONDS:
                return since is not None
            self._busy_since = None
            self._relieved = True
            self._reader = reader = self._reader + 1
        readers.submit(lambda: self._read(reader, None))
        return True

    def _read(self, reader: int, step: Step | None) -> None:
        """Up to the end, or until another thread reads."""
        operation, link = self._operation, self._link
        try:
            if step is None:
                step = next(operation)
            while True:
                if step is RECEIVE:
                    step = operation.send(link.receive())
                    continue
                if isinstance(step, ToolCalled):
                    if not self._answer(step, reader):
                        return
                elif isinstance(step, ToolCancelled):
                    self._answering.take(step)
                elif isinstance(step, bytes):
                    link.send(step)
                step = next(operation)
        except StopIteration as stop:
            self._value = stop.value
        except BaseException as error:
            if reader == 0:
                raise  # in the caller's thread
            self._error = error
        self._over.release()

    def _answer(self, step: ToolCalled, reader: int) -> bool:
        """False: this thread was relieved meanwhile."""
        call = self._answering.accept(step)
        if call is None:
            return True
        if self._relieved or not call.quick:
            workers.submit(lambda: call.run(self._link), call.sandbox_id)
            return True
        self._busy_since = perf_counter()
        watch.wake()
        try:
            call.run(self._link)
        finally:
            with self._lock:
                self._busy_since = None
                still = self._reader == reader
        return still


class _SharedLink:
    """A link that one thread reads, and several write to: a whole frame each, and none once the caller has left it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._left = False
        self.receive = link.receive

    def send(self, data: bytes) -> None:
        with self._lock:
            if not self._left:
                self._link.send(data)

    def leave(self) -> None:
        """What is being sent goes out as a whole; then the connection may be that of another call."""
        with self._lock:
            self._left = True


class _Watch:
    """Looks after all attendants of this process: every moment while tools run, and not at all when none has for long.

    Owns the thread in which it does so, which is started with the first of them; a forked child starts its own.
    """

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._attendances: set[Attendance] = set()
        self._awake = False
        self._started = False
        self._call = threading.Event()

    def add(self, attendance: Attendance) -> None:
        with self._lock:
            self._attendances.add(attendance)

    def remove(self, attendance: Attendance) -> None:
        with self._lock:
            self._attendances.discard(attendance)

    def wake(self) -> None:
        """A tool begins to run."""
        if self._awake:
            return
        with self._lock:
            if not self._started:
                threading.Thread(target=self._run, name="ramet tool watch", daemon=True).start()
                self._started = True
            self._awake = True
        self._call.set()

    def _run(self) -> None:
        while True:
            quiet_since = perf_counter()
            while perf_counter() - quiet_since < _QUIET_SECONDS:
                time.sleep(_MOMENT_SECONDS)
                if self._look():
                    quiet_since = perf_counter()
            self._call.clear()
            self._awake = False
            # A tool that began before this was said has woken nobody.
            if not self._look():
                self._call.wait()
            self._awake = True

    def _look(self) -> bool:
        with self._lock:
            attendances = tuple(self._attendances)
        now = perf_counter()
        return sum(attendance.relieve_if_busy(now) for attendance in attendances) > 0


watch = _Watch()
os.register_at_fork(after_in_child=watch.forked)
