"""Decompresses bodies that must be searched. Refuses those that expand out of proportion."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from ramet.network.http.heads import Malformed

_PIECE_BYTES = 256 * 1024
# How many times larger than its input the output may be, beyond a first part that is always allowed.
_GROWTH_AT_MOST = 100
_FIRST_BYTES = 64 << 20
_GZIP = frozenset({b"gzip", b"x-gzip"})
_EITHER_HEADER, _NO_HEADER = 32 + zlib.MAX_WBITS, -zlib.MAX_WBITS


class Unpacker:
    """Decompresses one body. ``kind`` is its only content coding."""

    def __init__(self, kind: bytes) -> None:
        self._gzip = kind in _GZIP
        self._stream: zlib._Decompress | None = None
        self._taken = self._given = 0
        self._complete = False

    @staticmethod
    def knows(kind: bytes) -> bool:
        return kind == b"deflate" or kind in _GZIP

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decompress in pieces of bounded size, so that the caller can pass one on before the next is made.

        Raises Malformed.
        """
        self._taken += len(data)
        more = bool(data)
        while more:
            if self._stream is None:
                self._begin(data)
            assert self._stream is not None
            try:
                piece = self._stream.decompress(data, _PIECE_BYTES)
            except zlib.error:
                raise Malformed("its body is not compressed as its Content-Encoding says") from None
            self._given += len(piece)
            if self._given > _FIRST_BYTES + self._taken * _GROWTH_AT_MOST:
                raise Malformed("its compressed body expands too much")
            if piece:
                yield piece
            data = self._stream.unconsumed_tail
            # A full piece may have more behind it in the decompressor, although all input was consumed.
            more = bool(data) or len(piece) == _PIECE_BYTES
            if self._stream.eof:
                # gzip allows several members one after the other.
                data = self._stream.unused_data
                more = bool(data)
                self._stream, self._complete = None, True

    def finish(self) -> None:
        if self._stream is not None or (self._taken and not self._complete):
            raise Malformed("its compressed body is cut short")

    def _begin(self, data: bytes) -> None:
        if self._complete and not self._gzip:
            raise Malformed("there is data after its compressed body")
        # "deflate" means a zlib header. Some servers omit it.
        bare = not self._gzip and (data[0] & 0x0F != 8 or (len(data) > 1 and (data[0] << 8 | data[1]) % 31))
        self._stream = zlib.decompressobj(_NO_HEADER if bare else _EITHER_HEADER)
