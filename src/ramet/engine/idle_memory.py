"""Returns memory of an idle engine to the host."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable


class IdleMemory:
    """Trims the heap some seconds after the last sandbox was closed, if no other was made by then.

    The allocator keeps freed memory for later use. After a load of many clients that is several times what an idle
    engine needs, for as long as the engine lives.
    """

    def __init__(self, seconds: float, is_idle: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._is_idle = is_idle
        self._timer: asyncio.TimerHandle | None = None

    def closed_one(self) -> None:
        """A sandbox was closed: start the timer anew if it was the last one."""
        self.stop()
        if self._is_idle():
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._trim)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _trim(self) -> None:
        self._timer = None
        if self._is_idle():  # a sandbox may have been made since the timer was set
            gc.collect()
            trim()


def trim() -> None:
    """Return what the allocator keeps: malloc_trim(3) of glibc. Other libraries lack it, and keep less."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    malloc_trim(ctypes.c_size_t(0))
