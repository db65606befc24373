"""Interrupts: SIGINT raises KeyboardInterrupt in user code; a second signal raises what `except Exception` cannot stop.

The engine signals this process only, at any time. An interrupt must end user code, must never hit guest code, and must
be forgotten when it comes between two cells. So user code is entered through one door, `Gate.run`; the handlers raise
only while it is open and only out of frames that are not the door's or the channel's. Everywhere else they make a note.

The signal does not say which cell it is for, so one that comes before its cell has begun is forgotten, too. Therefore
the engine sends a frame behind that of the cell, before the signal, and `Repl.answer` looks for it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from types import CodeType, FrameType
from typing import Any

SOFT_SIGNAL = 2
HARD_SIGNAL = 62

# The plain functions under signal.py's, which make enums of everything (a microsecond each, at every cell).
_plain: Any = import_module("_signal")
_getsignal: Callable[[int], Any] = _plain.getsignal
_set_signal: Callable[[int, Any], Any] = _plain.signal
_GUEST_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Raising between the lines of the import system would leave its locks taken for ever.
_UNTOUCHED = ("<frozen importlib", _GUEST_FOLDER)


class Interrupted(BaseException):
    """Ends a cell that went on after KeyboardInterrupt."""

    # Tracebacks show the bare name.
    __module__ = "builtins"

    def __str__(self) -> str:
        return "the cell went on after KeyboardInterrupt"


class Gate:
    """The door into user code. Used by the main thread only; its state is read by the signal handlers."""

    def __init__(self) -> None:
        # User code is being run.
        self.armed = False
        # A cell is being run, from the arrival of its frame to its answer.
        self.busy = False
        # An interrupt that could not be raised where it arrived.
        self.pending: type[BaseException] | None = None
        # The guest is between two steps that belong together, on behalf of user code.
        self.held = False
        # An interrupt was raised in this cell.
        self.fired = False
        self.protected: set[CodeType] = {Gate.run.__code__}
        # Asked when an interrupt arrives in background work between cells: does a cell wait for its turn?
        self.cell_waits: Callable[[], bool] = lambda: False
        # Given the interrupted frame, may cancel an awaiting cell instead of raising.
        self.cancel_awaiting: Callable[[FrameType], bool] = lambda frame: False
        self._main_thread = threading.get_ident()
        self._tool: int | None = None
        self._user_handler: Any = None
        # One object for ever: a bound method is made anew at each access, and `restore` compares by identity.
        self._soft_handler = self._on_soft

    def protect(self, *functions: Callable[..., Any]) -> None:
        """Interrupts that arrive in these functions' own frames wait for `raise_pending`."""
        self.protected.update(function.__code__ for function in functions)

    def install(self) -> None:
        _set_signal(SOFT_SIGNAL, self._soft_handler)
        _set_signal(HARD_SIGNAL, self._on_hard)

    def run(self, function: Callable[..., object], *arguments: object) -> BaseException | None:
        """Runs user code; returns the exception that ended it, or None."""
        try:
            # From here on handlers may raise, but not out of this very frame: between the check and the first
            # instruction of `function` the interpreter does not look for signals.
            self.armed = True
            if self.pending is not None:
                self.raise_pending()
            function(*arguments)
            self.armed = False
            return None
        except BaseException as error:
            self.armed = False
            return error

    def raise_pending(self) -> None:
        """Raises the interrupt that had to wait, if there is one and this is the thread it is meant for."""
        if self.pending is None or not self.armed or threading.get_ident() != self._main_thread:
            return
        kind, self.pending = self.pending, None
        self.fired = True
        handler = _getsignal(SOFT_SIGNAL)
        if kind is KeyboardInterrupt and handler is not self._soft_handler and callable(handler):
            # A handler that the user set in an earlier cell; it is called here in place of the signal.
            handler(SOFT_SIGNAL, None)
            return
        raise kind

    def begin(self) -> None:
        """A cell begins: interrupts that came before are forgotten."""
        self.pending = None
        self.fired = False
        # Last: what arrives from here on is for this cell and must be kept.
        self.busy = True
        if self._user_handler is not None:
            handler, self._user_handler = self._user_handler, None
            _set_signal(SOFT_SIGNAL, handler)

    def user_handles(self) -> bool:
        """Whether interrupts go to a handler that user code has set, so that `fired` does not tell of them."""
        return _getsignal(SOFT_SIGNAL) is not self._soft_handler

    def end(self) -> None:
        """A cell is over. A SIGINT handler of the user's is set aside until the next one."""
        self.busy = False
        self.pending = None
        handler = _getsignal(SOFT_SIGNAL)
        if handler is not self._soft_handler:
            # SIG_DFL or SIG_IGN would let the next interrupt kill the REPL, or miss it: not kept.
            if callable(handler) and handler is not signal.default_int_handler:
                self._user_handler = handler
            _set_signal(SOFT_SIGNAL, self._soft_handler)

    def _on_soft(self, number: int, frame: FrameType | None) -> None:
        if self._may_raise(KeyboardInterrupt, frame):
            self.fired = True
            if frame is not None and self.cancel_awaiting(frame):
                return
            raise KeyboardInterrupt

    def _on_hard(self, number: int, frame: FrameType | None) -> None:
        if self.armed or self.busy:
            self._raise_at_every_line()
        if self._may_raise(Interrupted, frame):
            self.fired = True
            raise Interrupted

    def _may_raise(self, kind: type[BaseException], frame: FrameType | None) -> bool:
        if not self.armed or self.held or frame is None or frame.f_code in self.protected:
            if self.busy:
                self.pending = kind
            return False
        # Background tasks run between cells: they are interrupted when they keep a cell waiting, else let be.
        return self.busy or self.cell_waits()

    def _raise_at_every_line(self) -> None:
        """Beats `while True: try: ... except BaseException: pass`: each line raises until the cell ends."""
        if sys.version_info < (3, 12) or self._tool is not None:
            return
        monitoring = sys.monitoring
        for tool in range(5, -1, -1):
            if monitoring.get_tool(tool) is None:
                monitoring.use_tool_id(tool, "ramet")
                monitoring.register_callback(tool, monitoring.events.LINE, self._on_line)
                monitoring.set_events(tool, monitoring.events.LINE)
                self._tool = tool
                return

    def _on_line(self, code: CodeType, line: int) -> None:
        if (
            self.armed
            and not self.held
            and threading.get_ident() == self._main_thread
            and not code.co_filename.startswith(_UNTOUCHED)
            and code not in self.protected
        ):
            self.fired = True
            raise Interrupted

    def calm(self) -> bool:
        """Stops raising at every line. True if it was on: whatever ran was torn apart anywhere."""
        if sys.version_info < (3, 12) or self._tool is None:
            return False
        monitoring, tool = sys.monitoring, self._tool
        self._tool = None
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
        monitoring.register_callback(tool, monitoring.events.LINE, None)
        monitoring.free_tool_id(tool)
        return True
