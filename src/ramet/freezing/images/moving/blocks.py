"""The format of an image as one file: parts, cut into compressed blocks that each have a hash.

    16 bytes        "ramet image 1", a newline, zeros
    blocks          each a header, then its stored bytes
    the last one    END, with a hash of all headers before it: a file that was cut short has none

A header has the kind, the bytes stored, the bytes they stand for, an offset, and the SHA-256 of the latter. The first
block is INDEX, which lists all parts and sizes. PART begins the next of them, DATA is what stands at an offset in
it. What no block has is zeros: holes stay holes. Compressed by zlib, or stored as it is where that is not smaller.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ramet.freezing.images.manifest import ImageRefused

MAGIC = b"ramet image 1\n".ljust(16, b"\0")
BLOCK_BYTES = 64 << 10
INDEX, PART, DATA, END = 1, 2, 3, 4
_HEADER = struct.Struct("<B3xIIQ32s")
_LEVEL = 1  # the others cost more time than they save bytes; docs/decisions/0024-moving-images.md has the numbers


class Block(NamedTuple):
    kind: int
    offset: int
    data: bytes


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class BlockWriter:
    """Writes one file, from its begin to its end."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._all = hashlib.sha256()
        write(MAGIC)

    def block(self, kind: int, offset: int, data: bytes) -> None:
        """At most BLOCK_BYTES of data."""
        packed = zlib.compress(data, _LEVEL)
        stored = packed if len(packed) < len(data) else data
        header = _HEADER.pack(kind, len(stored), len(data), offset, hashlib.sha256(data).digest())
        self._all.update(header)
        self._write(header + stored)

    def end(self) -> None:
        self._write(_HEADER.pack(END, 0, 0, 0, self._all.digest()))


class BlockReader:
    """Reads one file. Raises ImageRefused for anything that no writer wrote. Holds one block at a time."""

    def __init__(self, source: Readable, compressed_at_most: int) -> None:
        self._source = source
        self._left = compressed_at_most
        self._all = hashlib.sha256()
        magic = self._exactly(len(MAGIC))
        if magic != MAGIC:
            kind = "of another version" if magic.startswith(b"ramet image") else "not an image of Ramet"
            raise ImageRefused(f"the file is {kind}")

    def next(self) -> Block | None:
        """The next block. None: the file is at its end, and complete."""
        header = self._exactly(_HEADER.size)
        kind, stored, plain, offset, digest = _HEADER.unpack(header)
        if kind == END:
            if digest != self._all.digest():
                raise ImageRefused("the file is not what was written: blocks are missing or exchanged")
            if self._source.read(1):
                raise ImageRefused("something follows the end of the image")
            return None
        if kind not in (INDEX, PART, DATA) or plain > BLOCK_BYTES or stored > plain:
            raise ImageRefused("the file has a block that no image has")
        self._all.update(header)
        data = self._exactly(stored)
        if stored < plain:
            data = _expanded(data, plain)
        if hashlib.sha256(data).digest() != digest:
            raise ImageRefused("a block of the file is not what was written")
        return Block(kind, offset, data)

    def _exactly(self, length: int) -> bytes:
        self._left -= length
        if self._left < 0:
            raise ImageRefused("the file is larger than an image may be")
        parts = []
        while length:
            part = self._source.read(length)
            if not part:
                raise ImageRefused("the file is cut short")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


def _expanded(data: bytes, plain: int) -> bytes:
    """Decompress a block to at most the size that it states, also where the data would become larger."""
    inflating = zlib.decompressobj()
    try:
        expanded = inflating.decompress(data, plain)
        if len(expanded) == plain and not inflating.eof:
            expanded += inflating.decompress(inflating.unconsumed_tail, 1)  # the end of the stream, and no byte more
    except zlib.error as error:
        raise ImageRefused("a block of the file cannot be unpacked") from error
    if len(expanded) != plain or not inflating.eof or inflating.unused_data:
        raise ImageRefused("a block of the file has another length than it says")
    return expanded
