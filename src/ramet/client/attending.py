"""Reads on for a caller whose cell calls tools, in a thread of the workers, where the tools run as well.

    caller       RUN -> first TOOL_CALL, then waits for the end
    attendant    tool -> TOOL_ANSWER -> next TOOL_CALL -> tool -> TOOL_ANSWER ... RESULT

A tool that is quick runs in the very thread that has read its call: to hand it to another one costs as much as all the
rest, since one thread of Python waits for the other. One that is not quick must not keep others waiting: after a
moment another thread goes on reading, and from then on it only reads. The caller itself runs no tool, so it returns as
soon as the cell has ended, whatever a tool still does.
"""

from __future__ import annotations

import os
import threading
import time
from time import perf_counter
from typing import Any, Protocol

from ramet.client.operations import RECEIVE, Operation, Step, ToolCalled, ToolCancelled
from ramet.client.workers import workers
from ramet.transport.seam import Link

_MOMENT_SECONDS = 0.004
_QUIET_SECONDS = 0.1


class Sender(Protocol):
    """Carries a frame to the engine."""

    def send(self, data: bytes) -> None: ...


class Call(Protocol):
    """A call of a tool that runs in a thread."""

    def run(self, sender: Sender | None = None) -> None:
        """Answer it: this way if the answer is short, else over a link of its own."""


class Answering(Protocol):
    """Whoever answers the calls of a cell."""

    def take(self, step: ToolCalled | ToolCancelled) -> None:
        """A call, which is answered some time, or the news that nobody waits for one any more."""

    def accept(self, step: ToolCalled) -> Call | None:
        """To be run in a thread by whoever asks; None: it is on its way already."""

    def end(self) -> None:
        """The cell is over."""


class Attendance:
    """The rest of one call, from its first tool call on. Made and waited for by the caller."""

    def __init__(self, link: Link, operation: Operation[Any], answering: Answering) -> None:
        self._link = _SharedLink(link)
        self._operation = operation
        self._answering = answering
        self._over = threading.Lock()
        self._over.acquire()
        self._value: object = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        # Of the thread that reads: who is relieved has another number than this.
        self._reader = 0
        self._only_reads = False
        self._busy_since: float | None = None  # with a tool, in the thread that reads

    def result(self, step: Step) -> Any:
        """What the operation returns, from this step on."""
        workers.submit(lambda: self._attend(0, step))
        watch.add(self)
        try:
            self._over.acquire()
        finally:
            watch.remove(self)
        if self._error is not None:
            raise self._error
        return self._value

    def relieve_if_busy(self, now: float) -> bool:
        """Have another thread go on reading if this one is still at a tool. True if a tool has run of late."""
        with self._lock:
            since = self._busy_since
            if since is None or now - since < _MOMENT_SECONDS:
                return since is not None
            self._busy_since = None
            self._only_reads = True
            self._reader = reader = self._reader + 1
        workers.submit(lambda: self._attend(reader, None))
        return True

    def _attend(self, reader: int, step: Step | None) -> None:
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
                        return  # another reads now
                elif isinstance(step, ToolCancelled):
                    self._answering.take(step)
                elif isinstance(step, bytes):
                    link.send(step)
                step = next(operation)
        except StopIteration as stop:
            self._value = stop.value
        except BaseException as error:
            self._error = error
        self._over.release()

    def _answer(self, step: ToolCalled, reader: int) -> bool:
        """False: this thread was relieved meanwhile."""
        call = self._answering.accept(step)
        if call is None:
            return True
        if self._only_reads:
            workers.submit(lambda: call.run(self._link))
            return True
        self._busy_since = perf_counter()
        watch.wake()
        call.run(self._link)  # raises nothing
        with self._lock:
            self._busy_since = None
            return self._reader == reader


class _SharedLink:
    """A link that one thread reads, and several write to: a whole frame each."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self.receive = link.receive

    def send(self, data: bytes) -> None:
        with self._lock:
            self._link.send(data)


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
            self._awake = True
            started, self._started = self._started, True
        if started:
            self._call.set()
        else:
            threading.Thread(target=self._run, name="ramet tool watch", daemon=True).start()

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
