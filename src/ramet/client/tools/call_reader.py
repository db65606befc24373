"""Reads the frames of a cell whose code calls tools, and runs fast tools in the thread that reads.

    fast tools     RUN -> TOOL_CALL -> tool -> TOOL_ANSWER -> TOOL_CALL -> tool -> TOOL_ANSWER ... RESULT
    other tools    the same, but each tool runs in a worker thread while this thread goes on reading

Handing a call to another thread costs more than all the rest of it, because one Python thread waits for the other to
release the interpreter lock. So a tool that was fast when it was called last runs in the very thread that has read its
call. If it takes long after all, it must not hold up other calls: after some milliseconds a watchdog has another thread
go on reading, and the first one only waits for the end. If the caller waits with a timeout, no tool runs in its thread.
"""

from __future__ import annotations

import os
import threading
import time
from time import perf_counter
from typing import Any, Protocol

from ramet.client.operations.steps import RECEIVE, Operation, Step, ToolCalled, ToolCancelled
from ramet.client.tools.workers import readers, workers
from ramet.transport.seam import Link

_RELIEVE_SECONDS = 0.004  # a tool that holds up the reader for longer makes another thread read
_IDLE_SECONDS = 0.1  # the watchdog sleeps after this time without tools


class FrameSender(Protocol):
    """Carries a frame to the engine."""

    def send(self, data: bytes) -> None: ...


class ThreadedCall(Protocol):
    """A tool call that runs in a thread; ``call_runner.RunningToolCall``."""

    @property
    def sandbox_id(self) -> str: ...

    @property
    def may_run_in_reader(self) -> bool:
        """The tool was fast when it was called last, and the caller allows tools in its own thread."""

    def run(self, sender: FrameSender | None = None) -> None:
        """Run the tool and send the answer: over ``sender`` if it is short, else over a link of its own.

        Raises nothing but KeyboardInterrupt, which may strike the main thread anywhere.
        """


class ToolCalls(Protocol):
    """Answers the tool calls of a cell; ``call_runner.ToolCallRunner``."""

    def take(self, step: ToolCalled | ToolCancelled) -> None:
        """Start to answer a call, or give one up. Returns at once."""

    def accept(self, step: ToolCalled) -> ThreadedCall | None:
        """Return a call that the caller must run in a thread. None if it runs already."""

    def end(self) -> None:
        """Cancel what still runs: the cell is over."""


class ToolCallReader:
    """Reads for one cell, from its first tool call on. The caller makes it and waits for its result."""

    def __init__(self, link: Link, operation: Operation[Any], tool_calls: ToolCalls) -> None:
        self._link = _SharedLink(link)
        self._operation = operation
        self._tool_calls = tool_calls
        # Held until the operation has ended: the caller waits for it where another thread reads.
        self._ended = threading.Lock()
        self._ended.acquire()
        self._value: object = None
        self._error: BaseException | None = None
        # Guards the hand-over of reading: the watchdog relieves a reader while that may just be done with its tool.
        self._lock = threading.Lock()
        self._reader = 0  # number of the thread that reads; a thread with another number was relieved
        self._relieved = False
        self._busy_since: float | None = None  # since when the reading thread runs a tool

    def result(self, step: Step) -> Any:
        """Carry out the operation from this step on, and return its result."""
        watchdog.add(self)
        try:
            self._read(0, step)
            self._ended.acquire()
        finally:
            watchdog.remove(self)
            self._link.leave()
        if self._error is not None:
            raise self._error
        return self._value

    def relieve_if_busy(self, now: float) -> bool:
        """Have another thread go on reading if this one has run a tool for too long. Returns whether it runs one."""
        with self._lock:
            since = self._busy_since
            if since is None or now - since < _RELIEVE_SECONDS:
                return since is not None
            self._busy_since = None
            self._relieved = True
            self._reader = reader = self._reader + 1
        readers.submit(lambda: self._read(reader, None))
        return True

    def _read(self, reader: int, step: Step | None) -> None:
        """Read to the end, or until this thread was relieved."""
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
                    self._tool_calls.take(step)
                elif isinstance(step, bytes):
                    link.send(step)
                step = next(operation)
        except StopIteration as stop:
            self._value = stop.value
        except BaseException as error:
            if reader == 0:
                raise  # this is the caller's thread
            self._error = error
        self._ended.release()

    def _answer(self, step: ToolCalled, reader: int) -> bool:
        """Answer a call, here or in a worker. Returns False if this thread was relieved meanwhile."""
        call = self._tool_calls.accept(step)
        if call is None:
            return True
        if self._relieved or not call.may_run_in_reader:
            workers.submit(lambda: call.run(self._link), call.sandbox_id)
            return True
        self._busy_since = perf_counter()
        watchdog.wake()
        try:
            call.run(self._link)
        finally:
            with self._lock:
                self._busy_since = None
                still = self._reader == reader
        return still


class _SharedLink:
    """A link that one thread reads and several write to: whole frames, and none after the caller has left it."""

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
        """Let the frame that is being sent go out, and drop later ones: the connection may then serve another call."""
        with self._lock:
            self._left = True


class _Watchdog:
    """Relieves readers whose tools take long. Looks every few milliseconds while tools run, and sleeps otherwise.

    Owns its thread, which starts with the first tool. A forked child has no such thread and starts its own.
    """

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._readers: set[ToolCallReader] = set()
        self._awake = False
        self._started = False
        self._wake_up = threading.Event()

    def add(self, reader: ToolCallReader) -> None:
        with self._lock:
            self._readers.add(reader)

    def remove(self, reader: ToolCallReader) -> None:
        with self._lock:
            self._readers.discard(reader)

    def wake(self) -> None:
        """Start to look, because a tool begins to run in a reader."""
        if self._awake:
            return
        with self._lock:
            if not self._started:
                threading.Thread(target=self._run, name="ramet tool watch", daemon=True).start()
                self._started = True
            self._awake = True
        self._wake_up.set()

    def _run(self) -> None:
        while True:
            idle_since = perf_counter()
            while perf_counter() - idle_since < _IDLE_SECONDS:
                time.sleep(_RELIEVE_SECONDS)
                if self._look():
                    idle_since = perf_counter()
            self._wake_up.clear()
            self._awake = False
            # A tool that began before ``_awake`` was cleared did not wake this thread: look once more before waiting.
            if not self._look():
                self._wake_up.wait()
            self._awake = True

    def _look(self) -> bool:
        """Relieve readers that are late. Returns whether any reader runs a tool."""
        with self._lock:
            readers_now = tuple(self._readers)
        now = perf_counter()
        return sum(reader.relieve_if_busy(now) for reader in readers_now) > 0


watchdog = _Watchdog()
os.register_at_fork(after_in_child=watchdog.forked)
