"""Connects this terminal to a program in a sandbox: keys go there as they are typed, its output comes here."""

from __future__ import annotations

import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from ramet.client.blocking.sandbox import Sandbox
from ramet.client.blocking.terminals import Terminal
from ramet.errors import RametError

_STDIN = 0
_READ_BYTES = 4096


def converse(sandbox: Sandbox, command: str | Sequence[str]) -> int:
    """Run the program until it ends. Return its exit code."""
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    with sandbox.terminal(command, cols=columns, rows=rows, env=_environment()) as terminal:
        with _raw(), _resizing(terminal):
            threading.Thread(target=_type, args=(terminal,), name="typing", daemon=True).start()
            for piece in terminal.read():
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        return terminal.wait()


def _environment() -> dict[str, str]:
    """Return the variables that describe this terminal to the program."""
    return {name: os.environ[name] for name in ("TERM", "COLORTERM") if os.environ.get(name)}


def _type(terminal: Terminal) -> None:
    with suppress(RametError, OSError):  # the program or the sandbox has ended
        while data := os.read(_STDIN, _READ_BYTES):
            terminal.write(data)


@contextmanager
def _raw() -> Iterator[None]:
    """Set raw mode, without echo, line editing and signals: all keys go to the program, Ctrl-C too."""
    before = termios.tcgetattr(_STDIN)
    tty.setraw(_STDIN, termios.TCSADRAIN)  # TCSAFLUSH, the default, would drop what was typed ahead
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)


@contextmanager
def _resizing(terminal: Terminal) -> Iterator[None]:
    """Send the new size on SIGWINCH.

    That is a call to the engine, and a signal handler must not block, so a thread makes it.
    """

    def resize() -> None:
        with suppress(RametError, OSError):
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
            terminal.resize(columns, rows)

    def on_resize(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=resize, daemon=True).start()

    before = signal.signal(signal.SIGWINCH, on_resize)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
