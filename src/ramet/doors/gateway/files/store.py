"""Stores uploaded files, and files that code makes, on disk.

    folder/            0700, locked by one process
      lock
      index.sqlite     a row for each file; a file with a row has all its content
      content/<id>
      incoming/<id>    being written; left over from a killed process if it is there when a store opens

A file is written to incoming, moved to content, and only then gets its row; deletion goes in the opposite order. So a
process that is killed leaves only bytes without a row, and the next one removes them. Commits go to the write-ahead log
and do not wait for the disk: a power cut may undo the last ones, a kill never does.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from ramet.doors.gateway.files.disk import OpenFile, disk, lock, pieces_of, write_all
from ramet.doors.gateway.files.index import FileIndex, FileRow, Page
from ramet.doors.gateway.files.names import clean_name, mime_type_of
from ramet.doors.gateway.files.refusals import FileExpired, FileTooLarge, FileUnknown, StoreFull

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits of the store. Files made by code expire after a while; uploads stay until their owner deletes them."""

    file_bytes: int = 500 * _MIB
    owner_files: int = 10_000
    owner_bytes: int = 20 * 1024 * _MIB
    total_bytes: int = 100 * 1024 * _MIB
    made_kept_seconds: float | None = 30 * 24 * 3600.0
    expired_known_seconds: float = 30 * 24 * 3600.0  # while it is reported as expired, and not as unknown


class FileStore:
    """Owns the folder. All calls belong to one event loop; slow work runs in threads."""

    def __init__(
        self, folder: str | Path, limits: FileLimits | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = Path(folder)
        self.limits = FileLimits() if limits is None else limits
        self._clock = clock
        self._arriving: dict[str, int] = {}  # bytes of files that are still being written, by owner
        self._arriving_files: dict[str, int] = {}
        self._content, self._incoming = self._folder / "content", self._folder / "incoming"
        for path in (self._folder, self._content, self._incoming):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
        self._lock = lock(self._folder)
        try:
            self._index = FileIndex(self._folder / "index.sqlite")
            self._sweep()
        except BaseException:
            os.close(self._lock)
            raise

    def __repr__(self) -> str:
        return f"<FileStore {str(self._folder)!r}>"

    def close(self) -> None:
        if self._lock >= 0:
            self._index.close()
            os.close(self._lock)
            self._lock = -1

    async def add(
        self,
        owner: str,
        filename: str,
        mime_type: str | None,
        stream: AsyncIterable[bytes],
        *,
        downloadable: bool = False,
        expires_in_seconds: float | Callable[[], float | None] | None = None,
        container: str | None = None,
    ) -> FileRow:
        """Store a file. It exists completely when this returns, or not at all if this raises.

        ``expires_in_seconds`` may be a function, which is called when all bytes have arrived. Raises FileTooLarge,
        StoreFull, or the error of the stream.
        """
        file_id = f"file_{secrets.token_hex(12)}"
        name = clean_name(filename, mime_type)
        beside = self._incoming / file_id
        self._arriving_files[owner] = self._arriving_files.get(owner, 0) + 1
        written = 0
        try:
            self._check_count(owner)
            with disk():
                descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                async with aclosing(pieces_of(stream)) as pieces:
                    async for piece in pieces:
                        written += len(piece)
                        self._arriving[owner] = self._arriving.get(owner, 0) + len(piece)
                        self._check_room(owner, name, written)
                        with disk():
                            await asyncio.to_thread(write_all, descriptor, piece)
            finally:
                os.close(descriptor)
            if callable(expires_in_seconds):
                expires_in_seconds = expires_in_seconds()
            row = self._row(file_id, owner, name, mime_type, written, downloadable, expires_in_seconds, container)
            with disk():
                beside.rename(self._content / file_id)
                try:
                    self._index.insert(row)
                except BaseException:
                    (self._content / file_id).unlink(missing_ok=True)
                    raise
            return row
        finally:
            beside.unlink(missing_ok=True)
            _subtract(self._arriving, owner, written)
            _subtract(self._arriving_files, owner, 1)

    def get(self, owner: str, file_id: str) -> FileRow:
        """The row of a file. Raises FileUnknown, also for a file of another owner, or FileExpired."""
        row = self._index.get(owner, file_id)
        if row is None or row.state == "deleted":
            raise FileUnknown(file_id)
        if row.state == "expired" or row.expired(self._clock()):
            raise FileExpired(file_id)
        return row

    def list(
        self,
        owner: str,
        limit: int = 20,
        *,
        after: str | None = None,
        before: str | None = None,
    ) -> Page:
        """A page of files, newest first; ``after`` and ``before`` are ids at the ends of earlier pages."""
        return self._index.page(owner, self._clock(), limit, after, before)

    def some(self, owner: str, file_ids: Sequence[str]) -> Sequence[FileRow]:
        """The existing files among these ids, newest first."""
        now = self._clock()
        found = (self._index.get(owner, file_id) for file_id in dict.fromkeys(file_ids))
        there = [row for row in found if row is not None and row.state == "live" and not row.expired(now)]
        return sorted(there, key=lambda row: row.number, reverse=True)

    async def delete(self, owner: str, file_id: str) -> None:
        self.get(owner, file_id)
        self._index.delete(file_id, self._clock())
        await asyncio.to_thread((self._content / file_id).unlink, missing_ok=True)

    def content(self, owner: str, file_id: str) -> AsyncIterator[bytes]:
        """The bytes of a file, in pieces. It is open when this returns, so a later deletion does not cut it off."""
        self.get(owner, file_id)
        try:
            descriptor = os.open(self._content / file_id, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FileUnknown(file_id) from None
        return OpenFile(descriptor)

    async def tend(self) -> None:
        """Remove the content of expired files, and forget those that expired long ago."""
        now = self._clock()
        for file_id in self._index.expire(now, now - self.limits.expired_known_seconds):
            await asyncio.to_thread((self._content / file_id).unlink, missing_ok=True)

    def _row(
        self,
        file_id: str,
        owner: str,
        name: str,
        mime_type: str | None,
        size_bytes: int,
        downloadable: bool,
        expires_in_seconds: float | None,
        container: str | None,
    ) -> FileRow:
        now = self._clock()
        if expires_in_seconds is None and downloadable:
            expires_in_seconds = self.limits.made_kept_seconds
        return FileRow(
            id=file_id,
            owner=owner,
            filename=name,
            mime_type=mime_type_of(name, mime_type),
            size_bytes=size_bytes,
            created_seconds=now,
            downloadable=downloadable,
            expires_seconds=None if expires_in_seconds is None else now + expires_in_seconds,
            container=container,
        )

    def _check_count(self, owner: str) -> None:
        files, _ = self._index.usage(owner)
        if files + self._arriving_files[owner] > self.limits.owner_files:
            raise StoreFull(f"there are {self.limits.owner_files} files, which is the limit; delete some")

    def _check_room(self, owner: str, name: str, written: int) -> None:
        if written > self.limits.file_bytes:
            raise FileTooLarge(f"{name!r} is larger than {self.limits.file_bytes} bytes, which is the limit of a file")
        _, stored = self._index.usage(owner)
        if stored + self._arriving[owner] > self.limits.owner_bytes:
            raise StoreFull(f"the files would add up to more than {self.limits.owner_bytes} bytes; delete some")
        if self._index.total_bytes() + sum(self._arriving.values()) > self.limits.total_bytes:
            raise StoreFull("there is no room for more files in this gateway")

    def _sweep(self) -> None:
        """Remove what a killed process has left."""
        for path in self._incoming.iterdir():
            path.unlink()
        known = self._index.ids()
        for path in self._content.iterdir():
            if path.name not in known:
                path.unlink()
        lost = known - {path.name for path in self._content.iterdir()}
        for file_id in lost:
            self._index.delete(file_id, self._clock())


def _subtract(counts: dict[str, int], owner: str, amount: int) -> None:
    left = counts.get(owner, 0) - amount
    if left > 0:
        counts[owner] = left
    else:
        counts.pop(owner, None)
