"""Interrupts: SIGINT raises KeyboardInterrupt in user code; the hard signal raises `Interrupted`.

The engine signals this process at any moment. An interrupt must end user code, must never hit guest code, and must be
dropped when it arrives between two cells. So user code is entered through one function, `UserCodeGate.run`. The
handlers raise only while it is on the stack, and only if the interrupted frame is not one of `UserCodeGate.protected`.
Everywhere else they record the interrupt in `UserCodeGate.pending`, and `raise_pending` raises it later.

A signal does not carry the id of the cell it is meant for, so the guest also drops one that arrives before its cell has
begun. To cover that race the engine first sends an INTERRUPT frame behind the cell's RUN frame, then the signal;
`Repl.answer` looks for the frame.
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

from ramet_guest.wire import HARD_INTERRUPT_SIGNAL

SOFT_SIGNAL = 2
HARD_SIGNAL = HARD_INTERRUPT_SIGNAL

# signal.py wraps these functions and converts every value to an enum, which costs a microsecond each, in every cell.
_plain: Any = import_module("_signal")
_getsignal: Callable[[int], Any] = _plain.getsignal
_set_signal: Callable[[int, Any], Any] = _plain.signal
_GUEST_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# An exception raised inside the import system would leave its module locks taken for ever.
_UNTOUCHED = ("<frozen importlib", _GUEST_FOLDER)


class Interrupted(BaseException):
    """Ends a cell that continued after KeyboardInterrupt."""

    # Tracebacks then show the bare name, without a module.
    __module__ = "builtins"

    def __str__(self) -> str:
        return "the cell went on after KeyboardInterrupt"


class UserCodeGate:
    """The only way into user code.

    Only the main thread uses it; the signal handlers, which run in that thread, read its flags.
    """

    def __init__(self) -> None:
        # True while user code runs: handlers may raise.
        self.armed = False
        # True from the arrival of a cell's frame to its answer: an interrupt belongs to this cell and must not be lost.
        self.busy = False
        # An interrupt that arrived where the handler could not raise. `raise_pending` delivers it.
        self.pending: type[BaseException] | None = None
        # True while the guest is between two steps that user code must not see separated, such as starting a child
        # process and waiting for it. Handlers then only set `pending`.
        self.held = False
        # True once an interrupt was raised in this cell.
        self.fired = False
        # Code objects whose own frames no handler raises out of.
        self.protected: set[CodeType] = {UserCodeGate.run.__code__}
        # Called when an interrupt arrives in background work between cells. Returns whether a cell waits for its turn.
        self.cell_waits: Callable[[], bool] = lambda: False
        # Called with the interrupted frame. Returns True if it cancelled an awaiting cell, so that the handler does not
        # raise.
        self.cancel_awaiting: Callable[[FrameType], bool] = lambda frame: False
        self._main_thread = threading.get_ident()
        self._tool: int | None = None
        self._user_handler: Any = None
        # Stored once: each access to a bound method makes a new object, and `end` compares handlers by identity.
        self._soft_handler = self._on_soft

    def protect(self, *functions: Callable[..., Any]) -> None:
        """Defers interrupts that arrive in these functions' own frames to the next `raise_pending`."""
        self.protected.update(function.__code__ for function in functions)

    def install(self) -> None:
        _set_signal(SOFT_SIGNAL, self._soft_handler)
        _set_signal(HARD_SIGNAL, self._on_hard)

    def run(self, function: Callable[..., object], *arguments: object) -> BaseException | None:
        """Runs user code. Returns the exception that ended it, or None."""
        try:
            # Handlers may raise from here on, but not out of this frame, which is protected. CPython does not look for
            # signals between this check and the first instruction of `function`, so no interrupt falls between the two.
            self.armed = True
            if self.pending is not None:
                self.raise_pending()
            function(*arguments)
            # Disarmed here: after the return a handler's exception would hit guest code.
            self.armed = False
            return None
        except BaseException as error:
            self.armed = False
            return error

    def raise_pending(self) -> None:
        """Raises the interrupt that was deferred, if there is one and the caller is the main thread inside `run`."""
        if self.pending is None or not self.armed or threading.get_ident() != self._main_thread:
            return
        kind, self.pending = self.pending, None
        self.fired = True
        handler = _getsignal(SOFT_SIGNAL)
        if kind is KeyboardInterrupt and handler is not self._soft_handler and callable(handler):
            # User code installed this handler in an earlier cell. Call it here, because the signal itself is already
            # over.
            handler(SOFT_SIGNAL, None)
            return
        raise kind

    def begin(self) -> None:
        """Begins a cell and drops interrupts that arrived before it."""
        self.pending = None
        self.fired = False
        # Set last: once it is set, handlers record interrupts for this cell, and clearing `pending` after that could
        # lose one.
        self.busy = True
        if self._user_handler is not None:
            handler, self._user_handler = self._user_handler, None
            _set_signal(SOFT_SIGNAL, handler)

    def user_handles(self) -> bool:
        """Whether user code has installed a SIGINT handler. `fired` does not report interrupts that go to it."""
        return _getsignal(SOFT_SIGNAL) is not self._soft_handler

    def end(self) -> None:
        """Ends a cell and sets the user's SIGINT handler aside until the next cell."""
        # Cleared first: handlers then record nothing more, so that the next line drops this cell's last interrupt.
        self.busy = False
        self.pending = None
        handler = _getsignal(SOFT_SIGNAL)
        if handler is not self._soft_handler:
            # Do not keep SIG_DFL, SIG_IGN or Python's default: the next interrupt would kill the REPL, be lost, or
            # raise in guest code.
            if callable(handler) and handler is not signal.default_int_handler:
                self._user_handler = handler
            _set_signal(SOFT_SIGNAL, self._soft_handler)

    def _on_soft(self, number: int, frame: FrameType | None) -> None:
        # Runs between two bytecodes of the main thread, at any point of guest or user code.
        if self._may_raise(KeyboardInterrupt, frame):
            self.fired = True
            if frame is not None and self.cancel_awaiting(frame):
                return
            raise KeyboardInterrupt

    def _on_hard(self, number: int, frame: FrameType | None) -> None:
        # One exception is not enough for code that catches BaseException in a loop.
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
        # Background tasks run between cells. Interrupt them only if they keep a cell waiting.
        return self.busy or self.cell_waits()

    def _raise_at_every_line(self) -> None:
        """Ends `while True: try: ... except BaseException: pass`: raises at each line until the cell ends.

        Needs Python 3.12.
        """
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
            # Line events arrive in all threads; only the main thread runs cells.
            self.armed
            and not self.held
            and threading.get_ident() == self._main_thread
            and not code.co_filename.startswith(_UNTOUCHED)
            and code not in self.protected
        ):
            self.fired = True
            raise Interrupted

    def calm(self) -> bool:
        """Stops raising at every line.

        Returns True if that was on: the interrupted code was then cut off at an arbitrary line, so its loop and streams
        are not to be trusted.
        """
        if sys.version_info < (3, 12) or self._tool is None:
            return False
        monitoring, tool = sys.monitoring, self._tool
        self._tool = None
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
        monitoring.register_callback(tool, monitoring.events.LINE, None)
        monitoring.free_tool_id(tool)
        return True
