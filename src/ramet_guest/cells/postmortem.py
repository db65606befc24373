"""Ways to look at an error afterwards: `sys.last_exc` and its like, `%tb`, `%debug`, `pdb.pm()`; and `breakpoint()`.

As in a notebook, the last error keeps alive the objects that its functions held, until another takes its place.
Debuggers read commands from a terminal, and cells have none: `%debug` shows what a debugger shows first.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ramet_guest.cells.tracebacks import NO_TERMINAL, first_of_cell, format_error
from ramet_guest.comparing.descriptions import short

if TYPE_CHECKING:
    from ramet_guest.repl import Repl

MAXIMUM_VARIABLES = 50
_NOTHING = "there was no error yet\n"


def remember(error: BaseException) -> None:
    """Makes this the last error, without our frames before the cell's first one."""
    tail = first_of_cell(error.__traceback__)
    if tail is not None and tail is not error.__traceback__:
        BaseException.with_traceback(error, tail)  # the class may override the attribute
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if isinstance(error, MemoryError):
        # The next cell needs the memory that its functions held.
        traceback.clear_frames(error.__traceback__)


def last_error() -> BaseException | None:
    """Returns the error that is being handled, or the last that ended a cell. User code may have set anything there."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def forget() -> None:
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)


def register(repl: Repl) -> None:
    """Replaces `%tb`, `%debug` and the function that `breakpoint()` calls."""

    def tb(line: str) -> None:
        error = last_error()
        repl.output.cell_error(_NOTHING if error is None else text_in_mode(repl.shell, error, line.strip()))

    def debug(line: str, cell: str | None = None) -> None:
        if line.strip() or cell is not None:
            sys.stderr.write(f"%debug cannot run code: {NO_TERMINAL}\n")
        error = last_error()
        if error is None:
            sys.stderr.write(_NOTHING)
        else:
            sys.stdout.write(f"{format_error(error)}\n{variables(error.__traceback__)}")
            sys.stderr.write(f"%debug cannot take commands: {NO_TERMINAL}\n")

    repl.shell.register_magic_function(tb, "line", "tb")
    repl.shell.register_magic_function(debug, "line_cell", "debug")
    sys.breakpointhook = breakpoint_hook


def text_in_mode(shell: Any, error: BaseException, mode: str) -> str:
    """Formats an error for `%tb Verbose` and IPython's other modes; without a mode, as when the cell failed."""
    if not mode:
        return format_error(error)
    formatter = shell.InteractiveTB
    before = formatter.mode
    formatter.set_mode(mode=mode.capitalize())
    try:
        pieces = formatter.structured_traceback(type(error), error, first_of_cell(error.__traceback__), tb_offset=0)
        return str(formatter.stb2text(pieces)) + "\n"
    finally:
        formatter.set_mode(mode=before)


def variables(entry: TracebackType | None) -> str:
    """Lists the local variables of the innermost frame, one per line."""
    if entry is None:
        return ""
    while entry.tb_next is not None:
        entry = entry.tb_next
    frame = entry.tb_frame
    code = frame.f_code
    lines = [f"{code.co_filename}, line {entry.tb_lineno}, in {code.co_name}"]
    if frame.f_locals is frame.f_globals:
        lines.append("  its variables are those of the cells")
    else:
        names = list(frame.f_locals)
        lines += [f"  {name} = {short_or_why(frame, name)}" for name in names[:MAXIMUM_VARIABLES]]
        if len(names) > MAXIMUM_VARIABLES:
            lines.append(f"  and {len(names) - MAXIMUM_VARIABLES} more")
    return "\n".join(lines) + "\n"


def short_or_why(frame: FrameType, name: str) -> str:
    try:
        return short(frame.f_locals[name])
    except Exception as error:
        return f"<its repr raised {type(error).__name__}>"


def breakpoint_hook(*arguments: Any, **options: Any) -> Any:
    """Prints the place and continues. With PYTHONBREAKPOINT set, does what Python does."""
    if os.environ.get("PYTHONBREAKPOINT"):
        return sys.__breakpointhook__(*arguments, **options)
    frame = sys._getframe(1)
    where = f"{frame.f_code.co_filename}, line {frame.f_lineno}"
    print(f"breakpoint() in {where}: the cell goes on, because {NO_TERMINAL}", file=sys.stderr)
    return None
