"""Data to upload, in whatever form the user has it, as pieces of bytes."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import BinaryIO, cast

from ramet.protocol.argument_errors import kind_of, must
from ramet.protocol.calls import CHUNK_BYTES

Data = bytes | bytearray | memoryview | str | BinaryIO | Iterable[bytes]

# Data up to this size travels in the request itself.
SMALL_BYTES = 1024 * 1024

_ALLOWED = "bytes, a string, a file opened in binary mode, or an iterable of bytes"


def as_bytes(data: object) -> bytes | None:
    """Return data that is in memory as bytes, a string as UTF-8. None for files and iterables, which are read later."""
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    return None


def pieces(data: object) -> Iterator[bytes]:
    """Return an iterator over bytes in memory, a file, or an iterable. Raises InvalidArgument for anything else."""
    present = as_bytes(data)
    if present is not None:
        return (present[start : start + CHUNK_BYTES] for start in range(0, len(present), CHUNK_BYTES))
    if hasattr(data, "read"):
        return _file_pieces(cast(BinaryIO, data))
    if isinstance(data, Iterable):
        return (_check_piece(piece) for piece in data)
    raise must("data", f"be {_ALLOWED}", kind_of(data))


def async_pieces(data: object) -> Iterator[bytes] | AsyncIterator[bytes]:
    """Do the same as ``pieces``, and take asynchronous iterables, too."""
    if isinstance(data, AsyncIterable):
        return (_check_piece(piece) async for piece in data)
    return pieces(data)


def _file_pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):
        yield _check_piece(piece)


def _check_piece(piece: object) -> bytes:
    if not isinstance(piece, bytes | bytearray | memoryview):
        raise must("data", "give bytes", kind_of(piece))
    return bytes(piece)
