"""Formats exceptions for the user: with the user's frames and lines, without ours."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from types import TracebackType
from typing import Any

import IPython

from ramet_guest.cells.interrupts import Interrupted

_GUEST_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_IPYTHON_FOLDER = os.path.dirname(os.path.abspath(IPython.__file__)) + os.sep
_HIDDEN = (_GUEST_FOLDER, _IPYTHON_FOLDER)
_CELL = "<cell "
NO_TERMINAL = "cells have no terminal; sandbox.terminal() opens one"

MANY_FRAMES = 1200
SHOWN_FRAMES = 300
# Both together fit into a header of 64 KiB, at twelve bytes for a letter.
MAXIMUM_MESSAGE_CHARACTERS = 4096
MAXIMUM_NAME_CHARACTERS = 200

_TracebackException = traceback.TracebackException
_StackSummary = traceback.StackSummary
_walk = traceback.walk_tb
_getline = linecache.getline


def format_error(error: BaseException) -> str:
    """Returns the text of the traceback. Runs user code (`__str__`, `__notes__`), so call it through the gate."""
    if type(error).__name__ == "UsageError":  # IPython's own complaint about a magic's arguments
        return f"UsageError: {error}\n"
    if isinstance(error, SyntaxError):
        give_text(error)
    report = capture(error)
    if isinstance(error, Interrupted):
        # It was raised at each line on the way out, so its context repeats itself.
        report.__context__ = report.__cause__ = None
    trim(report, set())
    lines = list(report.format())
    if not report.stack and lines and lines[0].startswith("Traceback"):
        del lines[0]
    hint = hint_for(error)
    if hint is not None:
        lines.append(f"\nhint: {hint}\n")
    return "".join(lines)


def hint_for(error: BaseException) -> str | None:
    """Returns a hint for errors whose own message does not help in a cell."""
    if type(error).__name__ == "BdbQuit":
        return f"a debugger asked for a command, but {NO_TERMINAL}"
    if type(error) is RuntimeError and error.args == ("no running event loop",):
        return "a cell without `await` has no running loop: call it in a cell that awaits something"
    return None


def first_of_cell(entry: TracebackType | None) -> TracebackType | None:
    """Returns the traceback from the first frame of a cell on, or None if there is no such frame."""
    while entry is not None and not entry.tb_frame.f_code.co_filename.startswith(_CELL):
        entry = entry.tb_next
    return entry


def describe(error: BaseException) -> dict[str, str]:
    """Returns name and message for the answer. Runs user code, so call it through the gate."""
    name = plain(type(error).__name__, MAXIMUM_NAME_CHARACTERS)
    return {"name": name, "message": plain(str(error), MAXIMUM_MESSAGE_CHARACTERS)}


def plain(text: str, characters: int) -> str:
    return text[:characters].encode("utf-8", "replace").decode("utf-8")


def capture(error: BaseException) -> traceback.TracebackException:
    count = 0
    entry: TracebackType | None = error.__traceback__
    while entry is not None and count <= MANY_FRAMES:
        entry = entry.tb_next
        count += 1
    if count <= MANY_FRAMES:
        return _TracebackException(type(error), error, error.__traceback__, compact=True)
    # Formatting 100 000 frames takes seconds, and no one reads the middle.
    report = _TracebackException(type(error), error, error.__traceback__, limit=SHOWN_FRAMES, compact=True)
    report.stack.extend(_StackSummary.extract(_walk(error.__traceback__), limit=-SHOWN_FRAMES))
    return report


def trim(report: traceback.TracebackException | None, seen: set[int]) -> None:
    """Drops hidden frames in the whole chain, and those before the cell's own first frame (event loop, magics)."""
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    frames = [frame for frame in report.stack if not frame.filename.startswith(_HIDDEN)]
    for position, frame in enumerate(frames):
        if frame.filename.startswith(_CELL):
            frames = frames[position:]
            break
    report.stack[:] = frames
    trim(report.__cause__, seen)
    trim(report.__context__, seen)
    for inner in report.exceptions or ():
        trim(inner, seen)


def give_text(error: SyntaxError) -> None:
    """Adds the source line, because the compiler cannot read a file called `<cell 3>`."""
    if not error.text and error.filename and error.lineno:
        error.text = _getline(error.filename, error.lineno) or None


def last_resort(error: BaseException) -> str:
    """Describes an exception that cannot be formatted. Runs no user code."""
    return f"{type(error).__name__}: <the traceback could not be formatted>\n"


class ThreadReports:
    """`threading.excepthook` that shows errors of the user's threads without guest frames."""

    def __init__(self, write: Any) -> None:
        self._write = write

    def __call__(self, arguments: Any, /) -> None:
        if arguments.exc_type is SystemExit:
            return
        name = arguments.thread.name if arguments.thread is not None else "unknown"
        error = arguments.exc_value
        try:
            text = format_error(error if error is not None else arguments.exc_type())
        except Exception:
            text = last_resort(error)
        self._write(f"Exception in thread {name}:\n{text}")


def lower_recursion_limit_is_survivable() -> None:
    """Raises a recursion limit that a cell set so low that our own code could not run."""
    if sys.getrecursionlimit() < 200:
        sys.setrecursionlimit(1000)
