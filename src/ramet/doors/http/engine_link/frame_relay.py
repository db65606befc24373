"""Frames that pass through: finds where they begin and end, without decoding them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct

from ramet.errors import ProtocolError
from ramet.protocol import calls
from ramet.protocol.frames import VERSION, encode

# The first bytes of a frame, as drawn in protocol/frames.py: length of everything after it, version, kind.
_PREFIX = Struct("<IBB")
_LENGTH_BYTES = 4

# The beginning of a frame is held back until the rest has come, unless it is longer than this.
_HELD_BYTES_AT_MOST = 1024 * 1024

HEARTBEAT = encode(calls.HEARTBEAT, {})


class FrameScanner:
    """Follows a stream of frames by their prefixes; 256 KiB of output cost it a few microseconds."""

    __slots__ = ("_allowed", "_left", "_start", "_frame_bytes", "_last", "count", "final", "first_kind", "kind")

    def __init__(self, last: frozenset[int] = calls.FINAL, allowed: frozenset[int] | None = None) -> None:
        """Nothing may follow a frame of a kind in ``last``, and only ``allowed`` kinds may come before it."""
        self._last = last
        self._allowed = allowed
        self._start = b""  # a prefix that is not complete
        self._left = 0  # missing bytes of the current frame
        self._frame_bytes = 0
        self.kind = 0  # of the current frame, or of the last one
        self.first_kind = 0
        self.count = 0
        self.final = False  # whether the last frame is complete

    @property
    def between_frames(self) -> bool:
        return self._left == 0 and not self._start

    @property
    def frame_bytes(self) -> int:
        """The size of the current frame, or of the last one."""
        return self._frame_bytes

    @property
    def begun_bytes(self) -> int:
        """The number of bytes that have come of an incomplete frame."""
        return self._frame_bytes - self._left if self._left else len(self._start)

    def feed(self, data: bytes) -> None:
        """Note bytes that came. Raises ProtocolError if they are not valid frames."""
        size = len(data)
        at = 0
        if self._start:
            missing = _PREFIX.size - len(self._start)
            self._start += data[:missing]
            if len(self._start) < _PREFIX.size:
                return
            at = missing
            self._begin(self._start, 0)
            self._left -= _PREFIX.size
            self._start = b""
        while True:
            step = min(self._left, size - at)
            self._left -= step
            at += step
            if self._left:
                return
            if self.kind in self._last and self.count:
                self.final = True
            if at == size:
                return
            if self.final:
                raise ProtocolError("something follows the last frame")
            if size - at < _PREFIX.size:
                self._start = data[at:]
                return
            self._begin(data, at)

    def _begin(self, data: bytes, at: int) -> None:
        length, version, kind = _PREFIX.unpack_from(data, at)
        # At least two bytes for version and kind, and four for the length of the header.
        if version != VERSION or length < 6:
            raise ProtocolError(f"not a frame of version {VERSION}")
        if self._allowed is not None and kind not in self._allowed:
            raise ProtocolError(f"a frame of kind {kind} is not allowed here")
        self._left = self._frame_bytes = _LENGTH_BYTES + length
        self.kind = kind
        self.count += 1
        if self.count == 1:
            self.first_kind = kind


class WholeFrames:
    """Passes on whole frames, so that an error frame can be inserted between any two of them.

    A very long frame is passed on as it comes; meanwhile ``at_border`` is false.
    """

    __slots__ = ("_held", "_scanner", "at_border")

    def __init__(self, scanner: FrameScanner) -> None:
        self._scanner = scanner  # has been fed all bytes that come here
        self._held = b""
        self.at_border = True

    def feed(self, data: bytes) -> bytes:
        if self._held:
            data = self._held + data
            self._held = b""
        begun = self._scanner.begun_bytes
        if not begun:
            self.at_border = True
            return data
        if begun <= len(data) and begun <= _HELD_BYTES_AT_MOST:
            self.at_border = True
            self._held = data[-begun:]
            return data[:-begun]
        self.at_border = False
        return data


class Heartbeat:
    """Calls back streams that were silent for a while.

    One timer serves all, because most calls end within one period.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: dict[Callable[[], None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def heard(self, callback: Callable[[], None]) -> None:
        """Call back after a period of silence, and after each further one, until the next ``heard`` or ``forget``."""
        loop = asyncio.get_running_loop()
        self._waiting[callback] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._beat)

    def forget(self, callback: Callable[[], None]) -> None:
        self._waiting.pop(callback, None)

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        for callback, due in list(self._waiting.items()):
            if due <= now + 0.001:
                self._waiting[callback] = now + self._seconds
                callback()
        if self._waiting:
            # At most ten timers in a period, not one for each callback: a callback may be late by a tenth.
            soonest = min(self._waiting.values())
            self._timer = loop.call_later(max(soonest - now, self._seconds / 10), self._beat)
