"""Forwards this command's standard input to code in a sandbox while the code runs, and never far ahead of it."""

from __future__ import annotations

import os
import select
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import RametError

_STDIN = 0
_PIECE_BYTES = 256 * 1024
_PIECES_AHEAD = 8
_SHORTEST_WAIT_SECONDS = 0.01
_LONGEST_WAIT_SECONDS = 0.2


def has_input() -> bool:
    """Whether standard input is a pipe, a socket or a file.

    A terminal is for the user who types, and /dev/null is empty.
    """
    try:
        mode = os.fstat(_STDIN).st_mode
    except OSError:
        return False  # standard input is closed
    if stat.S_ISREG(mode):
        return True
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    now = select.poll()
    now.register(_STDIN, select.POLLIN)
    return not any(event & select.POLLHUP and not event & select.POLLIN for _, event in now.poll(0))


@contextmanager
def forwarded_input(sandbox: Sandbox, wanted: bool, remove: bool) -> Iterator[str | None]:
    """Forward standard input meanwhile, if wanted. Yields the folder of the sandbox where code finds it.

    ``remove``: the sandbox stays, so delete the folder.
    """
    if not wanted:
        yield None
        return
    forwarder = _InputForwarder(sandbox)
    forwarder.start()
    try:
        yield forwarder.folder
    finally:
        forwarder.stop(remove)


class _InputForwarder:
    """Puts input into a folder of the sandbox, as numbered pieces, where the guest takes them."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.folder = f"/var/tmp/ramet-input-{os.urandom(8).hex()}"
        self._over = threading.Event()

    def start(self) -> None:
        self._sandbox.files.mkdir(self.folder)
        # A daemon: the input may never end, and the script need not read it.
        threading.Thread(target=self._forward, name="standard input", daemon=True).start()

    def stop(self, remove: bool) -> None:
        self._over.set()
        if remove:
            with suppress(RametError):
                self._sandbox.files.remove(self.folder, recursive=True)

    def _forward(self) -> None:
        files = self._sandbox.files
        number = 0
        with suppress(RametError, OSError):  # the sandbox has ended, or the input cannot be read
            while True:
                piece = self._read()
                if self._over.is_set():
                    return
                files.write(f"{self.folder}/.{number}", piece)
                files.rename(f"{self.folder}/.{number}", f"{self.folder}/{number}")
                if not piece:
                    return
                number += 1
                self._wait_for(number - _PIECES_AHEAD)

    def _read(self) -> bytes:
        while True:
            try:
                return os.read(_STDIN, _PIECE_BYTES)
            except BlockingIOError:
                select.select([_STDIN], [], [])

    def _wait_for(self, number: int) -> None:
        """Wait until the guest has taken this piece."""
        delay = _SHORTEST_WAIT_SECONDS
        while number >= 0 and not self._over.is_set() and self._sandbox.files.exists(f"{self.folder}/{number}"):
            time.sleep(delay)
            delay = min(2 * delay, _LONGEST_WAIT_SECONDS)
