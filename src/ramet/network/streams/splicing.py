"""Bytes from one socket to another inside the kernel, for transfers so large and quick that copying them here shows.

Through a pipe that holds them in between, with splice(2): 1 GiB takes less than half of the processor time that reading
and writing it does. The loop's transports stay in charge of both sockets: while bytes are spliced the one does not read
and the other does not write, and descriptors of our own wait for both. Only a few at once: a pipe holds memory of the
kernel for as long as a slow reader likes.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterable

PIPE_BYTES = 512 * 1024
_AT_ONCE = 32
_ROUNDS = 8  # before others have their turn
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK

_PIPES_KEPT = 8

_running: set[Splice] = set()
_pipes: list[tuple[int, int]] = []  # empty ones, for the next


class Splice:
    """One direction, until ``stop``. ``ended`` is told when the source has no more, or which of the two broke, how."""

    def __init__(
        self,
        source: int,
        sink: int,
        left: int | None,
        moved: Callable[[int], float],
        ended: Callable[[OSError | None, OSError | None], None],
    ) -> None:
        self.left = left
        self._moved = moved
        self._ended = ended
        self._held = 0  # in the pipe
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._stopped = False
        self._descriptors: list[int] = []
        try:
            self._out, self._in = _pipe()
            self._descriptors += (self._out, self._in)
            for one in (source, sink):
                self._descriptors.append(os.dup(one))
        except OSError:
            _close_all(self._descriptors)
            raise
        self._source, self._sink = self._descriptors[2:]
        _running.add(self)
        self._loop.add_reader(self._source, self._run)

    def stop(self) -> bytes:
        """End it. Gives what the sink did not take."""
        if self._stopped:
            return b""
        self._stopped = True
        _running.discard(self)
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        if self._timer is not None:
            self._timer.cancel()
        rest = b""
        while self._held > len(rest) and (more := os.read(self._out, self._held - len(rest))):
            rest += more
        _close_all(self._descriptors[2:])
        if len(rest) == self._held and len(_pipes) < _PIPES_KEPT:
            _pipes.append((self._out, self._in))
        else:
            _close_all(self._descriptors[:2])
        return rest

    def _run(self) -> None:
        if self._stopped or self._timer is not None:
            return
        for _ in range(_ROUNDS):
            if not self._held and not self._take():
                return
            if self._stopped or self._timer is not None or not self._give():
                return
        # Not left to the next event: of a socket with an error, the loop tells one only.
        self._timer = self._loop.call_soon(self._go_on)

    def _take(self) -> bool:
        size = PIPE_BYTES if self.left is None else min(self.left, PIPE_BYTES)
        try:
            count = os.splice(self._source, self._in, size, flags=_FLAGS)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._ended(error, None)
            return False
        if not count:
            self._ended(None, None)
            return False
        self._held = count
        if self.left is not None:
            self.left -= count
        wait = self._moved(count)
        if wait > 0 and not self._stopped:
            self._loop.remove_reader(self._source)
            self._timer = self._loop.call_later(wait, self._go_on_after_wait)
        return True

    def _give(self) -> bool:
        try:
            self._held -= os.splice(self._out, self._sink, self._held, flags=_FLAGS)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._ended(None, error)
            return False
        if self._held:
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._sink_takes)
            return False
        if self.left == 0:
            self._ended(None, None)
            return False
        return True

    def _sink_takes(self) -> None:
        self._loop.remove_writer(self._sink)
        if self._give():
            self._loop.add_reader(self._source, self._run)

    def _go_on(self) -> None:
        self._timer = None
        self._run()

    def _go_on_after_wait(self) -> None:
        self._timer = None
        if self._give():
            self._loop.add_reader(self._source, self._run)


def has_room() -> bool:
    return len(_running) < _AT_ONCE


def _pipe() -> tuple[int, int]:
    if _pipes:
        return _pipes.pop()
    out, in_ = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.fcntl(in_, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # EPERM: the user has too many large ones
        _close_all((out, in_))
        raise
    return out, in_


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
