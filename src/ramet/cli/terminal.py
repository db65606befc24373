"""This terminal as that of a program in a sandbox: keys go there as they are typed, what it prints comes here."""

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

from ramet.client.sandbox import Sandbox
from ramet.client.terminals import Terminal
from ramet.errors import RametError

_STDIN = 0
_READ_BYTES = 4096


def converse(sandbox: Sandbox, command: str | Sequence[str]) -> int:
    """Until the program ends; its exit code."""
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    with sandbox.terminal(command, cols=columns, rows=rows, env=_environment()) as terminal:
        with _raw(), _resizing(terminal):
            threading.Thread(target=_type, args=(terminal,), name="typing", daemon=True).start()
            for piece in terminal.read():
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        return terminal.wait()


def _environment() -> dict[str, str]:
    """What the program should know of this terminal."""
    return {name: os.environ[name] for name in ("TERM", "COLORTERM") if os.environ.get(name)}


def _type(terminal: Terminal) -> None:
    with suppress(RametError, OSError):  # it has ended
        while data := os.read(_STDIN, _READ_BYTES):
            terminal.write(data)


@contextmanager
def _raw() -> Iterator[None]:
    """No echo, no lines, no signals: all keys are for the program, Ctrl-C too."""
    before = termios.tcgetattr(_STDIN)
    tty.setraw(_STDIN, termios.TCSADRAIN)  # the usual TCSAFLUSH would drop what was typed ahead
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)


@contextmanager
def _resizing(terminal: Terminal) -> Iterator[None]:
    """SIGWINCH tells the program the new size. That is a call, and made by a thread: a handler must not block."""

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
