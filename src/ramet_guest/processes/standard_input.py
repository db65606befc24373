"""Standard input of a script: the host puts pieces into a folder, and a thread passes them on to descriptor 0.

Pieces are files named 0, 1, 2 and so on. They appear whole, by a rename; an empty one means the end. The thread removes
a piece once it has read it, so that the host sees how far the script is and never has more than a few of them here.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import TextIO

_STDIN = 0
_FIRST_DELAY_SECONDS = 0.002
_LONGEST_DELAY_SECONDS = 0.05


class StandardInput:
    """Owns descriptor 0 and `sys.stdin` from `begin` to `end`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._over = threading.Event()
        self._kept_descriptor = -1
        self._kept_stream: TextIO | None = None

    def begin(self) -> None:
        """Replaces standard input by a pipe, and starts the thread that fills it."""
        self._kept_descriptor = os.dup(_STDIN)
        self._kept_stream = sys.stdin
        read_end, write_end = os.pipe()
        os.dup2(read_end, _STDIN)
        os.close(read_end)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(_STDIN, closefd=False)), "utf-8")
        threading.Thread(target=self._feed, args=(write_end,), name="standard input", daemon=True).start()

    def end(self) -> None:
        """Restores standard input and stops the thread.

        The thread remains only while a process that the script left behind holds the reading end of the pipe.
        """
        # Set before the pipe goes: the thread must not start on another piece.
        self._over.set()
        if self._kept_descriptor >= 0:
            os.dup2(self._kept_descriptor, _STDIN)
            os.close(self._kept_descriptor)
            self._kept_descriptor = -1
            sys.stdin = self._kept_stream

    def _feed(self, write_end: int) -> None:
        number, delay = 0, _FIRST_DELAY_SECONDS
        try:
            while not self._over.is_set():
                path = os.path.join(self._folder, str(number))
                try:
                    with open(path, "rb") as file:
                        piece = file.read()
                except FileNotFoundError:
                    self._over.wait(delay)
                    delay = min(2 * delay, _LONGEST_DELAY_SECONDS)
                    continue
                # Removed before it is written: the write blocks until the script reads, and the host may send the next
                # piece.
                os.unlink(path)
                if not piece:
                    break
                view = memoryview(piece)
                while view:
                    view = view[os.write(write_end, view) :]
                number, delay = number + 1, _FIRST_DELAY_SECONDS
        except OSError:
            pass  # no process reads from the pipe any more
        finally:
            os.close(write_end)
