"""The read ends of a REPL's stdout and stderr."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Callable

STDOUT = 0
STDERR = 1

_READ_BYTES = 256 * 1024


class Pipes:
    """Reads both pipes while ``watch`` is on, and to an exact point with ``take_what_is_there``.

    Quiet until told: see ``Settings.quiet_seconds``. A pipe whose writers are all gone is not looked at again.
    """

    def __init__(self, stdout: int, stderr: int, quiet_seconds: float, on_data: Callable[[int, bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = {STDOUT: stdout, STDERR: stderr}
        self._quiet_seconds = quiet_seconds
        self._on_data = on_data
        self._watching = False
        self._held = False
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
        for stream, descriptor in list(self._open.items()):
            remaining = _bytes_in_pipe(descriptor)
            while remaining > 0:
                data = _read(descriptor, remaining)
                if not data:
                    break
                remaining -= len(data)
                self._on_data(stream, data)

    def detach(self) -> None:
        self._ignore()
        self._open.clear()
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
            self._on_data(stream, data)
        elif data is not None:
            self._loop.remove_reader(descriptor)
            self._open.pop(stream, None)


def _read(descriptor: int, count: int) -> bytes | None:
    try:
        return os.read(descriptor, count)
    except (BlockingIOError, InterruptedError):
        return None


_int = struct.Struct("i")


def _bytes_in_pipe(descriptor: int) -> int:
    answer: int = _int.unpack(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]
    return answer
