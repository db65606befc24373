"""The client's view of one call on a connection: decodes frames as they arrive and tracks whether the call is over."""

from __future__ import annotations

from collections.abc import Iterator

from ramet.errors import ProtocolError
from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder

_READ_BYTES = 64 * 1024
_READ_BYTES_AT_MOST = 1024 * 1024


class CallExchange:
    """Decodes the answers to one request. A connection may be reused only when its exchange is ``over``."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(FROM_ENGINE)
        self._frames: Iterator[Frame] = iter(())
        self.over = False

    @property
    def wanted_bytes(self) -> int:
        """A good size for the next read."""
        missing_bytes = self._decoder.missing_bytes if self._decoder.in_frame else 0
        return min(missing_bytes, _READ_BYTES_AT_MOST) if missing_bytes > _READ_BYTES else _READ_BYTES

    def feed(self, data: bytes) -> None:
        self._frames = self._decoder.feed(data)

    def next_frame(self) -> Frame | None:
        """Return the next frame if it has fully arrived."""
        frame = next(self._frames, None)
        if frame is not None and frame.kind in calls.FINAL:
            self.over = frame.kind != calls.ERROR or not _hangs_up(frame)
        return frame


def _hangs_up(error: Frame) -> bool:
    """Whether the engine closes the connection after this error."""
    details = error.header.get("details")
    return error.header.get("code") == ProtocolError.code or (isinstance(details, dict) and "hung_up" in details)
