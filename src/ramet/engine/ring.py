"""The end of a stream of bytes. Each byte has a number: a reader can go on where it was, and see what it missed."""

from __future__ import annotations


class Ring:
    """The last so many bytes."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._data = bytearray()
        self.start = 0  # number of the first byte that is kept

    @property
    def end(self) -> int:
        """Number of the byte that will come next."""
        return self.start + len(self._data)

    def append(self, data: bytes) -> None:
        self._data += data
        excess = len(self._data) - self._size_bytes
        if excess > 0:
            del self._data[:excess]
            self.start += excess

    def read(self, since: int, at_most_bytes: int) -> tuple[int, bytes]:
        """What is kept from a number on, and the number of its first byte: a later one if that much is gone."""
        first = min(max(since, self.start), self.end)
        at = first - self.start
        return first, bytes(memoryview(self._data)[at : at + at_most_bytes])
