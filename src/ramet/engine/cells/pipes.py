"""The read ends of a REPL's stdout and stderr."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import sys
import termios
from collections.abc import Callable
from contextlib import suppress

STDOUT = 0
STDERR = 1

_READ_BYTES = 256 * 1024
_TAKE_BYTES = 64 * 1024  # the capacity of a pipe unless somebody has enlarged it (pipe(7))
# A pipe with much output is enlarged: fewer and larger pieces save about a third of the time for 100 MB. It is shrunk
# again afterwards, because the kernel limits the pages of all pipes of a user.
_MUCH_BYTES = 256 * 1024
_LARGE_BYTES = 512 * 1024


class Pipes:
    """Reads both pipes while it watches, and up to an exact point with ``take_what_is_there``.

    After ``rest`` it does not watch for a moment: see ``Settings.quiet_seconds``. A pipe without writers is dropped.
    """

    def __init__(self, stdout: int, stderr: int, quiet_seconds: float, on_data: Callable[[int, bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = {STDOUT: stdout, STDERR: stderr}
        self._poll = select.poll()
        for descriptor in self._open.values():
            self._poll.register(descriptor, select.POLLIN)
        self._quiet_seconds = quiet_seconds
        self._on_data = on_data
        self._watching = False
        self._held = False
        self._taken_bytes = 0  # read since the last rest
        self._enlarged: set[int] = set()
        self._quiet_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Read as soon as output arrives."""
        if not self._watching and not self._held:
            self._watching = True
            for stream, descriptor in self._open.items():
                self._loop.add_reader(descriptor, self._on_readable, stream, descriptor)

    def rest(self) -> None:
        """Do not read for a moment, then watch. Cheap to call for every cell: all calls share one timer."""
        self._ignore()
        self._taken_bytes = 0
        while self._enlarged:
            _resize(self._enlarged.pop(), _TAKE_BYTES)
        self._quiet_until = self._loop.time() + self._quiet_seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._quiet_until, self._after_rest)

    def hold(self) -> None:
        """Do not read until ``release``. The writer blocks once its pipe is full: that is the backpressure."""
        self._held = True
        self._ignore()

    def release(self) -> None:
        if self._held:
            self._held = False
            self.watch()

    def take_what_is_there(self) -> None:
        """Read exactly the bytes that are in the pipes now. Later bytes belong to another cell, or to none."""
        # One poll for both, because mostly at least one is empty. The kernel holds the pipe's lock during a read, so a
        # read takes all that is there at one moment. Only one that returns a full buffer may have left some: FIONREAD
        # tells how much, and no more than that is read, so that a program that keeps printing cannot hold us here.
        for descriptor, _ in self._poll.poll(0):
            stream = STDOUT if descriptor == self._open.get(STDOUT) else STDERR
            data = _read(descriptor, _TAKE_BYTES)
            if data == b"":
                self._end(stream, descriptor)
            remaining = _bytes_in_pipe(descriptor) if data and len(data) == _TAKE_BYTES else 0
            while data:
                self._on_data(stream, data)
                data = _read(descriptor, remaining) if remaining > 0 else None
                remaining -= len(data) if data else 0

    def detach(self) -> None:
        self._ignore()
        self._open.clear()
        self._enlarged.clear()
        self._poll = select.poll()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _after_rest(self) -> None:
        if self._loop.time() < self._quiet_until:
            self._timer = self._loop.call_at(self._quiet_until, self._after_rest)
        else:
            self._timer = None
            self.watch()

    def _ignore(self) -> None:
        if self._watching:
            self._watching = False
            for descriptor in self._open.values():
                self._loop.remove_reader(descriptor)

    def _on_readable(self, stream: int, descriptor: int) -> None:
        data = _read(descriptor, _READ_BYTES)
        if data:
            self._taken_bytes += len(data)
            if self._taken_bytes > _MUCH_BYTES and descriptor not in self._enlarged:
                self._enlarged.add(descriptor)
                _resize(descriptor, _LARGE_BYTES)
            self._on_data(stream, data)
        elif data is not None:
            self._end(stream, descriptor)

    def _end(self, stream: int, descriptor: int) -> None:
        """All writers are gone. The kernel would report such a pipe as readable for ever."""
        self._loop.remove_reader(descriptor)
        self._poll.unregister(descriptor)
        self._enlarged.discard(descriptor)
        del self._open[stream]


def _read(descriptor: int, count: int) -> bytes | None:
    try:
        return os.read(descriptor, count)
    except (BlockingIOError, InterruptedError):
        return None


def _resize(descriptor: int, count: int) -> None:
    """Resize a pipe. It stays as it is if the user has no pages left (EPERM) or it holds more than that (EBUSY)."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, count)


def _bytes_in_pipe(descriptor: int) -> int:
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)
