"""Disk access of the file store: reads and writes in threads, a lock, and disk errors as errors of the API."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

from ramet.doors.gateway.files.refusals import StoreFull
from ramet.errors import RametError

# The size of one read or write.
_PIECE_BYTES = 1024 * 1024


class OpenFile:
    """An open file, read piece by piece. It is closed at its end, or when it is garbage collected."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "rb", buffering=0)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece: bytes | None = None
        if not self._file.closed:
            piece = await asyncio.to_thread(self._file.read, _PIECE_BYTES)
        if not piece:
            self._file.close()
            raise StopAsyncIteration
        return piece

    def __del__(self) -> None:
        self._file.close()


async def pieces_of(stream: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """The same bytes in larger pieces, each worth the hop to a thread."""
    gathered = bytearray()
    async for piece in stream:
        gathered += piece
        if len(gathered) >= _PIECE_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


@contextmanager
def disk() -> Iterator[None]:
    """Map errors of a full or broken disk to errors of the API. Errors of a stream that is being read are not meant."""
    try:
        yield
    except OSError as error:
        raise StoreFull(f"the file could not be stored: {error.strerror}") from error
    except sqlite3.OperationalError as error:
        raise StoreFull(f"the file could not be stored: {error}") from error


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def lock(folder: Path) -> int:
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise RametError(
            f"the files in {str(folder)!r} are in use by another gateway",
            hint="stop that one, or use another folder with --files",
        ) from None
    return descriptor
