"""Moves bytes from one socket to another inside the kernel, for transfers so large that copying them costs much CPU.

splice(2) moves them through a pipe: 1 GiB takes less than half of the processor time of reading and writing. The loop's
transports stay responsible for both sockets. While bytes are spliced, one does not read and the other does not write,
and duplicates of both descriptors are watched instead. Only a few run at a time: a pipe holds kernel memory for as long
as a slow reader likes.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterable

PIPE_BYTES = 512 * 1024
# 32 pipes of 512 KiB are 16 MiB. By default the kernel grants an ordinary user 64 MiB (pipe-user-pages-soft).
_AT_ONCE = 32
_ROUNDS = 8  # before other callbacks of the loop run
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK

# Reusing a pipe saves system calls and the kernel's allocation of its ring of pages.
_PIPES_KEPT = 8

_running: set[Splice] = set()
_pipes: list[tuple[int, int]] = []  # empty, for reuse


class Splice:
    """One direction, until ``stop``.

    Calls ``ended(None, None)`` at the end, or with the source's or the sink's error.
    """

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
        self._held = 0  # bytes in the pipe
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._stopped = False
        self._descriptors: list[int] = []
        try:
            self._out, self._in = _pipe()
            self._descriptors += (self._out, self._in)
            # Duplicates, because the loop refuses to watch a descriptor that one of its transports uses.
            for one in (source, sink):
                self._descriptors.append(os.dup(one))
        except OSError:
            _close_all(self._descriptors)
            raise
        self._source, self._sink = self._descriptors[2:]
        _running.add(self)
        self._loop.add_reader(self._source, self._run)

    def stop(self) -> bytes:
        """Stop, and return what the sink has not taken."""
        # `ended` callbacks stop the splice from inside `_run`, and the stream may stop it again when it closes.
        if self._stopped:
            return b""
        self._stopped = True
        _running.discard(self)
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        if self._timer is not None:
            self._timer.cancel()
        rest = b""
        # Read exactly what the pipe holds: reading an empty one would raise BlockingIOError.
        while self._held > len(rest) and (more := os.read(self._out, self._held - len(rest))):
            rest += more
        _close_all(self._descriptors[2:])
        # Only an empty pipe may be reused: the next connection would otherwise receive these bytes.
        if len(rest) == self._held and len(_pipes) < _PIPES_KEPT:
            _pipes.append((self._out, self._in))
        else:
            _close_all(self._descriptors[:2])
        return rest

    def _run(self) -> None:
        # An event that was already queued when the splice stopped, or began to wait for the rate limit.
        if self._stopped or self._timer is not None:
            return
        for _ in range(_ROUNDS):
            if not self._held and not self._take():
                return
            if self._stopped or self._timer is not None or not self._give():
                return
        # Schedule the next turn ourselves: for a socket with an error libuv reports one event and then stops watching
        # it.
        self._timer = self._loop.call_soon(self._go_on)

    def _take(self) -> bool:
        size = PIPE_BYTES if self.left is None else min(self.left, PIPE_BYTES)
        try:
            count = os.splice(self._source, self._in, size, flags=_FLAGS)
        except (BlockingIOError, InterruptedError):
            # Nothing to read yet. The reader stays registered.
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
        # May call back into the stream, which may abort it: hence the look at `_stopped`.
        wait = self._moved(count)
        if wait > 0 and not self._stopped:
            # Over the rate limit. Stop watching the source: it stays readable, and the loop would call us again and
            # again.
            self._loop.remove_reader(self._source)
            self._timer = self._loop.call_later(wait, self._go_on_after_wait)
        return True

    def _give(self) -> bool:
        try:
            self._held -= os.splice(self._out, self._sink, self._held, flags=_FLAGS)
        except (BlockingIOError, InterruptedError):
            pass  # the sink's buffer is full
        except OSError as error:
            self._ended(None, error)
            return False
        if self._held:
            # Wait for the sink only. The pipe must be empty before more is taken, so that `left` and the order stay
            # right.
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
    """Whether another splice may start."""
    return len(_running) < _AT_ONCE


def _pipe() -> tuple[int, int]:
    if _pipes:
        return _pipes.pop()
    out, in_ = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.fcntl(in_, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # EPERM: the user's pipe memory is used up (pipe-user-pages-soft)
        _close_all((out, in_))
        raise
    return out, in_


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
