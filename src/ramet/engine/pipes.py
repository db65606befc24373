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
_TAKE_BYTES = 64 * 1024  # what a pipe holds unless somebody made it larger
# While much is printed: fewer and larger pieces cost everybody on the way less, about a third for 100 MB. Given back
# afterwards, because the kernel counts pages of pipes per user.
_MUCH_BYTES = 256 * 1024
_LARGE_BYTES = 512 * 1024


class Pipes:
    """Reads both pipes while ``watch`` is on, and to an exact point with ``take_what_is_there``.

    Quiet until told: see ``Settings.quiet_seconds``. A pipe whose writers are all gone is not looked at again.
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
        self._taken_bytes = 0  # since the last rest, while watching
        self._enlarged: set[int] = set()
        self._quiet_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Read as soon as something comes."""
        if not self._watching and not self._held:
            self._watching = True
            for stream, descriptor in self._open.items():
                self._loop.add_reader(descriptor, self._on_readable, stream, descriptor)

    def rest(self) -> None:
        """Leave the pipes alone for a moment, then watch. Cheap when called again and again: one timer serves all."""
        self._ignore()
        self._taken_bytes = 0
        while self._enlarged:
            _resize(self._enlarged.pop(), _TAKE_BYTES)
        self._quiet_until = self._loop.time() + self._quiet_seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._quiet_until, self._after_rest)

    def hold(self) -> None:
        """Leave the pipes alone until ``release``; a writer blocks when its pipe is full."""
        self._held = True
        self._ignore()

    def release(self) -> None:
        if self._held:
            self._held = False
            self.watch()

    def take_what_is_there(self) -> None:
        """Hand over exactly the bytes that are in the pipes now: what is written later belongs to somebody else."""
        # One poll for both, since mostly at least one is empty. A read takes all that is there at one moment, as the
        # kernel holds the lock of the pipe meanwhile; only when it came back full may there be more: FIONREAD says.
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
        """All writers are gone; a pipe in that state would be readable for ever."""
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
    """Where the user has no more pages, or more than that is inside, it stays as it is."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, count)


def _bytes_in_pipe(descriptor: int) -> int:
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)
