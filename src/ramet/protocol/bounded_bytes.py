"""Keeps a bounded part of an unbounded stream of bytes."""

from __future__ import annotations


class HeadAndTail:
    """The first and the last half of a stream, and its length.

    The tail is trimmed only when it has grown to twice its size, so that adding is cheap however small the pieces are.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self._head_bytes = limit_bytes // 2
        self._tail_bytes = limit_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()

    @property
    def cut(self) -> bool:
        """Whether the stream exceeds the limit, so that its middle is left out."""
        return self.total_bytes > self.limit_bytes

    def add(self, data: bytes) -> None:
        self.total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        if room >= len(data):
            self._head += data
            return
        if room:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: -self._tail_bytes]

    def everything(self) -> bytes:
        """Return the whole stream so far. Only valid up to the limit, while nothing was dropped."""
        return bytes(self._head + self._tail)

    def kept(self) -> bytes:
        """Return what is kept. A line of its own marks a gap, which never splits a UTF-8 character."""
        if not self.cut:
            return bytes(self._head + self._tail) if self._tail else bytes(self._head)
        head = bytes(self._head[: whole_characters(self._head)])
        tail = bytes(self._tail[-self._tail_bytes :])
        tail = tail[leading_fragment(tail) :]
        left_out = self.total_bytes - len(head) - len(tail)
        return b"".join((head, b"\n[... %d bytes left out ...]\n" % left_out, tail))


class Tail:
    """The last bytes of a stream."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > 2 * self._limit_bytes:
            del self._kept[: -self._limit_bytes]

    def take(self) -> bytes:
        """Return what is kept, and clear it."""
        if not self._kept:
            return b""
        kept = bytes(self._kept[-self._limit_bytes :])
        if len(self._kept) > self._limit_bytes:
            kept = kept[leading_fragment(kept) :]
        self._kept.clear()
        return kept


def whole_characters(data: bytes | bytearray) -> int:
    """Return the length of the data without an incomplete UTF-8 character at its end."""
    # A character has at most three bytes after its first; look back for a first byte that needs more than there are.
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return len(data)
        if byte >= 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if wanted > back else len(data)
    return len(data)


def leading_fragment(data: bytes | bytearray) -> int:
    """Return the number of bytes at the start that continue a character whose beginning is missing."""
    count = 0
    while count < min(3, len(data)) and 0x80 <= data[count] < 0xC0:
        count += 1
    return count
