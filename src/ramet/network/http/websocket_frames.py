"""Websocket frames from a server, with secrets masked in their payload: RFC 6455, 5.2.

frame:     end of message (1 bit), 0 (3), opcode (4); masked (1), length (7) [2 or 8 more], payload

At the end of a message nothing has to be held back, because no value continues in the next one.
"""

from __future__ import annotations

from collections import deque

from ramet.network.http.heads import Malformed
from ramet.network.secrets.masking import Masker

_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_END, _RESERVED, _OPCODE = 0x80, 0x70, 0x0F
_CONTROL_BYTES_AT_MOST = 125
# Frames that wait behind held-back bytes. A message of many empty frames would make them grow without end.
_WAITING_AT_MOST = 1000


class MaskedFrames:
    """One direction of one websocket. Also finds a value that is split over several frames of a message."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._unread = b""
        self._left = 0  # unread bytes of the current frame's payload
        self._ends_message = True  # whether the current frame ends its message
        self._in_message = False
        # Frame headers and control frames, each with the number of payload bytes that come before it.
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._taken = self._given = 0  # payload bytes taken in, and payload bytes returned

    def feed(self, data: bytes) -> bytes:
        """Mask what can be passed on now. Raises Malformed for anything but plain websocket frames."""
        data = self._unread + data
        out: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                payload = data[at : at + self._left]
                at += len(payload)
                self._left -= len(payload)
                self._taken += len(payload)
                out.append(self._give(self._masker.feed(payload)))
                self._end_message(out)
                continue
            end = self._begin_frame(data, at, out)
            if not end:
                break
            at = end
        self._unread = data[at:]
        return b"".join(out)

    def _begin_frame(self, data: bytes, at: int, out: list[bytes]) -> int:
        """Read a frame header. Returns where the payload begins, or the end of a control frame; 0: more is needed."""
        if len(data) < at + 2:
            return 0
        first, second = data[at], data[at + 1]
        opcode, ends = first & _OPCODE, bool(first & _END)
        start = at + 2 + {126: 2, 127: 8}.get(second, 0)
        # An extension (reserved bits), such as compression, would hide values from the search.
        if first & _RESERVED or second & _END or opcode not in (_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG):
            raise Malformed("it sent an invalid websocket frame, or one with an extension")
        if opcode >= _CLOSE:
            if not ends or second > _CONTROL_BYTES_AT_MOST:
                raise Malformed("it sent a websocket frame that is too long")
            end = start + second
            if len(data) < end:
                return 0
            # A control frame may stand between the parts of a message. It is masked on its own, and must not end that
            # search.
            self._wait(data[at:start] + self._masker.fresh().whole(data[start:end]), out)
            return end
        if (opcode == _CONTINUED) is not self._in_message:
            raise Malformed("it began a websocket message inside another one")
        if len(data) < start:
            return 0
        self._left = second if second < 126 else int.from_bytes(data[at + 2 : start], "big")
        self._in_message, self._ends_message = not ends, ends
        self._wait(data[at:start], out)
        self._end_message(out)
        return start

    def _end_message(self, out: list[bytes]) -> None:
        if self._ends_message and not self._left:
            out.append(self._give(self._masker.finish()))

    def _wait(self, data: bytes, out: list[bytes]) -> None:
        self._waiting.append((self._taken, data))
        if len(self._waiting) > _WAITING_AT_MOST:
            raise Malformed("it sent a websocket message with too many empty parts")
        out.append(self._give(b""))

    def _give(self, masked: bytes) -> bytes:
        """Join payload bytes with the headers that belong between them."""
        parts: list[bytes] = []
        at = 0
        while self._waiting and self._waiting[0][0] <= self._given + len(masked):
            behind, data = self._waiting.popleft()
            parts += (masked[at : behind - self._given], data)
            at = behind - self._given
        self._given += len(masked)
        return b"".join((*parts, masked[at:]))
