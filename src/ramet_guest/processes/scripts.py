"""Runs a script the way `python script.py` does: its name in tracebacks, `__file__`, arguments, standard input, exit.

`ramet run` sends a cell that calls `run`. The script's tracebacks show neither the guest nor that cell.
"""

from __future__ import annotations

import atexit
import importlib
import io
import json
import os
import sys
import threading
import tokenize
from types import TracebackType
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython

from ramet_guest.cells.compiling import Program, plain_script
from ramet_guest.cells.interrupts import Interrupted
from ramet_guest.processes.standard_input import StandardInput

if TYPE_CHECKING:
    from ramet_guest.repl import Repl

_INTERRUPTED_CODE = 130


class ScriptInterrupted(SystemExit):
    """Raised when a script was interrupted from outside.

    Ends the cell without a traceback; the message says where it was.
    """

    def __init__(self, place: str) -> None:
        super().__init__(_INTERRUPTED_CODE)
        self._place = place

    def __str__(self) -> str:
        return self._place


# Results then show the exception that the script met.
ScriptInterrupted.__name__ = "KeyboardInterrupt"


def run(told: str) -> None:
    """Runs the script that a JSON object describes.

    language   "python" or "bash"
    path       of the script in the sandbox, or null: the code is in `source`
    name       of the code in tracebacks
    arguments  for `sys.argv`
    modules    files that were copied in together with the script: import them again
    input      a folder in which the pieces of standard input appear, or null
    final      the sandbox ends with the script: wait for threads and call exit functions
    """
    order: dict[str, Any] = json.loads(told)
    shell: Any = get_ipython()
    given = None if order["input"] is None else StandardInput(order["input"])
    try:
        if given is not None:
            given.begin()
        if order["language"] == "bash":
            run_bash(shell, order["source"])
        else:
            run_python(shell.run_nested.__self__, order)
    finally:
        if given is not None:
            given.end()


def run_bash(shell: Any, source: str) -> None:
    try:
        code = shell.run_command(source)
    except (KeyboardInterrupt, Interrupted):
        raise ScriptInterrupted("") from None
    if code:
        raise SystemExit(code)


def run_python(repl: Repl, order: dict[str, Any]) -> None:
    name: str = order["name"]
    before = set(threading.enumerate())
    sys.argv[:] = order["arguments"]
    try:
        program = prepare(repl, order)
    except Exception as error:
        # The compiler's own frames are of no use to the user.
        repl.report(error.with_traceback(None))
        return
    ending: SystemExit | None = None
    try:
        repl.run_whole(program)
    except SystemExit as error:
        ending = error
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, Interrupted)) and repl.gate.fired:
            raise ScriptInterrupted(place(error.__traceback__, name)) from None
        repl.report(error.with_traceback(from_script(error.__traceback__, name)))
    if order["final"]:
        try:
            leave(before)
        except (KeyboardInterrupt, Interrupted):
            raise ScriptInterrupted("while its threads were being waited for") from None
    if ending is not None:
        raise ending


def prepare(repl: Repl, order: dict[str, Any]) -> Program:
    """Does everything up to the script's first line. Raises SyntaxError, and whatever else compilers raise."""
    path: str | None = order["path"]
    name: str = order["name"]
    if path is None:
        return repl.compiler.compile(order["source"], name)
    folder = os.path.dirname(path)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    forget_modules(set(order["modules"]))
    repl.namespace["__file__"] = path
    with open(path, "rb") as file:
        text = decode(file.read(), name)
    return plain_script(text, name, repl.sources) or repl.compiler.compile(text, name)


def forget_modules(files: set[str]) -> None:
    """Removes modules, so that a sandbox that runs a script again imports their current files."""
    for name, module in list(sys.modules.items()):
        if name != "__main__" and getattr(module, "__dict__", {}).get("__file__") in files:
            del sys.modules[name]
    importlib.invalidate_caches()


def decode(data: bytes, name: str) -> str:
    """Decodes a file as Python does: byte order mark, coding line, any line ends."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except (UnicodeDecodeError, SyntaxError):
        compile(data, name, "exec")  # raises Python's own message
        raise SyntaxError(f"{name} cannot be decoded") from None


def from_script(trace: TracebackType | None, name: str) -> TracebackType | None:
    """Returns the traceback from the script's own first frame on."""
    entry = trace
    while entry is not None and entry.tb_frame.f_code.co_filename != name:
        entry = entry.tb_next
    return entry or trace


def place(trace: TracebackType | None, name: str) -> str:
    """Names the last line of the script itself that was running."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f"in {name}, line {line}"


def leave(before: set[threading.Thread]) -> None:
    """Does what Python does at exit: stops executors, joins threads, calls exit functions."""
    for function in reversed(getattr(threading, "_threading_atexits", ())):
        function()
    for thread in threading.enumerate():
        if not thread.daemon and thread not in before and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
