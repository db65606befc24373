"""Exceptions like those of signal handlers, raised at a chosen place of what a program does."""

from __future__ import annotations

import linecache
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_OURS = "/ramet/"
_WAITING = ("_look", "_receive")  # functions that look for an answer again and again: never the same number of lines


class Interrupted(BaseException):
    """What a handler of the tests raises."""


def _is_with(frame: FrameType) -> bool:
    """No signal handler runs between the end of such a block and the release of its lock; a trace function would."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


class _Lines:
    """Counts lines of our own code that one thread runs, and raises at one of them."""

    def __init__(self, at: int | None) -> None:
        self.count = 0
        self._at = at

    def trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if _OURS not in frame.f_code.co_filename:
            return None
        if event == "line" and frame.f_code.co_name not in _WAITING and not _is_with(frame):
            self.count += 1
            if self.count == self._at:
                raise Interrupted  # Python stops tracing now: it happens once
        return self.trace


def count_lines(work: Callable[[], object]) -> int:
    """How many lines of our code it runs."""
    lines = _Lines(None)
    _traced(lines, work)
    return lines.count


def interrupt_at_line(line: int, work: Callable[[], object]) -> bool:
    """Run it up to that line. False: it came to its end before."""
    try:
        _traced(_Lines(line), work)
    except Interrupted:
        return True
    return False


def _traced(lines: _Lines, work: Callable[[], object]) -> None:
    sys.settrace(lines.trace)
    try:
        work()
    finally:
        sys.settrace(None)


def interrupt_after(seconds: float, work: Callable[[], object]) -> bool:
    """The same by a real signal, wherever it finds us. In the main thread only."""
    assert threading.current_thread() is threading.main_thread()

    def handle(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)
    return False


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds:g} seconds: {what}"
        time.sleep(0.01)
