"""The end of a stream of bytes. Bytes are numbered: a reader continues where it was, and sees what it has missed."""

from __future__ import annotations


class Ring:
    """Keeps the last ``size_bytes`` bytes."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._data = bytearray()
        self.start = 0  # number of the first kept byte

    @property
    def end(self) -> int:
        """Number of the next byte to come."""
        return self.start + len(self._data)

    def append(self, data: bytes) -> None:
        self._data += data
        excess = len(self._data) - self._size_bytes
        if excess > 0:
            del self._data[:excess]
            self.start += excess

    def read(self, since: int, at_most_bytes: int) -> tuple[int, bytes]:
        """The kept bytes from ``since`` on, after the number of the first of them, which is later if some are gone."""
        first = min(max(since, self.start), self.end)
        at = first - self.start
        return first, bytes(memoryview(self._data)[at : at + at_most_bytes])
