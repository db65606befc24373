"""The index of the file store: which files exist, who owns them, and when they expire."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ramet.web.sqlite_store import SqliteStore, StoreSchema

_MIGRATIONS = (
    """
    CREATE TABLE files (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        filename TEXT NOT NULL,
        mime_type TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        created_seconds REAL NOT NULL,
        downloadable INTEGER NOT NULL,
        expires_seconds REAL,
        container TEXT,
        state TEXT NOT NULL DEFAULT 'live'
    );
    CREATE INDEX files_of_owner ON files (owner, number) WHERE state = 'live';
    CREATE INDEX files_that_expire ON files (expires_seconds) WHERE expires_seconds IS NOT NULL;
    """,
)
_BROKEN = "move its folder away to start with no files"
_HINTS = {
    sqlite3.SQLITE_FULL: "make room on that disk",
    sqlite3.SQLITE_BUSY: "another program writes to it; try again in a moment",
    sqlite3.SQLITE_LOCKED: "another program writes to it; try again in a moment",
    # To move the files away helps with a broken index only.
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_NOTADB: _BROKEN,
}
_SCHEMA = StoreSchema(
    _MIGRATIONS,
    name="the index of the files",
    hint=_HINTS.get,
    newer="the index {path!r} has version {version}, but this Ramet knows only up to {known}",
    newer_hint="a newer Ramet wrote it: use that one, or another folder",
)
_WRITTEN = "id, owner, filename, mime_type, size_bytes, created_seconds, downloadable, expires_seconds, container"
_COLUMNS = f"{_WRITTEN}, state, number"
_LIVE = "owner = ? AND state = 'live' AND (expires_seconds IS NULL OR expires_seconds > ?)"


# The content of an expired or deleted file is gone. Its row stays for a while, so that requests learn why, and lists
# can continue after it.
FileState = Literal["live", "expired", "deleted"]


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file."""

    id: str
    owner: str
    filename: str
    mime_type: str
    size_bytes: int
    created_seconds: float  # since the epoch
    downloadable: bool
    expires_seconds: float | None
    container: str | None  # the container whose code made it
    state: FileState = "live"
    number: int = 0  # counts files in order of arrival

    def expired(self, now: float) -> bool:
        return self.expires_seconds is not None and self.expires_seconds <= now


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, newest first, and whether there are more in the requested direction."""

    rows: tuple[FileRow, ...]
    more: bool


class FileIndex:
    """Owns the SQLite file. Belongs to one thread; every call is quick."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create it. Raises RametError if that fails or a newer Ramet wrote it."""
        self._database = SqliteStore(path, _SCHEMA)
        try:
            self._usage = self._count()
            self._total_bytes = sum(size for _, size in self._usage.values())
        except BaseException as error:
            self._database.close()
            if isinstance(error, sqlite3.Error):
                raise _SCHEMA.explained(error, "open", path) from error
            raise

    def close(self) -> None:
        self._database.close()

    def insert(self, row: FileRow) -> None:
        marks = ", ".join("?" * 9)
        self._database.execute(
            f"INSERT INTO files ({_WRITTEN}) VALUES ({marks})",
            (
                row.id,
                row.owner,
                row.filename,
                row.mime_type,
                row.size_bytes,
                row.created_seconds,
                row.downloadable,
                row.expires_seconds,
                row.container,
            ),
        )
        self._add_usage(row.owner, 1, row.size_bytes)

    def get(self, owner: str, file_id: str) -> FileRow | None:
        if not file_id.isascii():
            return None  # not an id of ours, and SQLite accepts no lone surrogates
        found = self._database.execute(
            f"SELECT {_COLUMNS} FROM files WHERE id = ? AND owner = ?", (file_id, owner)
        ).fetchone()
        return None if found is None else _row(found)

    def page(self, owner: str, now: float, limit: int, after: str | None, before: str | None) -> Page:
        """Rows older than ``after``, or the ones right before ``before``. An unknown id counts as none."""
        bound, order = "", "DESC"
        values: list[object] = [owner, now]
        mark = after if after is not None else before
        number = None if mark is None else self._number(owner, mark)
        if number is not None:
            bound = "AND number < ?" if after is not None else "AND number > ?"
            order = "DESC" if after is not None else "ASC"
            values.append(number)
        found = self._database.execute(
            f"SELECT {_COLUMNS} FROM files WHERE {_LIVE} {bound} ORDER BY number {order} LIMIT ?",
            (*values, limit + 1),
        ).fetchall()
        rows = [_row(one) for one in found[:limit]]
        if order == "ASC":
            rows.reverse()
        return Page(tuple(rows), len(found) > limit)

    def delete(self, file_id: str, now: float) -> None:
        found = self._database.execute(
            "UPDATE files SET state = 'deleted', expires_seconds = ? WHERE id = ? AND state = 'live' "
            "RETURNING owner, size_bytes",
            (now, file_id),
        ).fetchall()
        for owner, size_bytes in found:
            self._add_usage(owner, -1, -size_bytes)

    def expire(self, now: float, forget_before: float) -> list[str]:
        """Mark expired files, and return their ids, so that their content can be removed.

        Deletes rows that expired long ago.
        """
        with self._database.transaction():
            found = self._database.execute(
                "UPDATE files SET state = 'expired' WHERE expires_seconds <= ? AND state = 'live' "
                "RETURNING id, owner, size_bytes",
                (now,),
            ).fetchall()
            self._database.execute("DELETE FROM files WHERE state != 'live' AND expires_seconds <= ?", (forget_before,))
        for _, owner, size_bytes in found:
            self._add_usage(owner, -1, -size_bytes)
        return [file_id for file_id, _, _ in found]

    def ids(self) -> set[str]:
        """The ids of all files that have content."""
        return {file_id for (file_id,) in self._database.execute("SELECT id FROM files WHERE state = 'live'")}

    def usage(self, owner: str) -> tuple[int, int]:
        """The number of an owner's files, and their size in bytes."""
        return self._usage.get(owner, (0, 0))

    def total_bytes(self) -> int:
        return self._total_bytes

    def _number(self, owner: str, file_id: str) -> int | None:
        row = self.get(owner, file_id)
        return None if row is None else row.number

    def _count(self) -> dict[str, tuple[int, int]]:
        found = self._database.execute(
            "SELECT owner, COUNT(*), SUM(size_bytes) FROM files WHERE state = 'live' GROUP BY owner"
        )
        return {owner: (files, size) for owner, files, size in found}

    def _add_usage(self, owner: str, files: int, size_bytes: int) -> None:
        self._total_bytes += size_bytes
        had = self.usage(owner)
        self._usage[owner] = (had[0] + files, had[1] + size_bytes)
        if self._usage[owner][0] <= 0:
            del self._usage[owner]


def _row(values: tuple[object, ...]) -> FileRow:
    row = FileRow(*values)  # type: ignore[arg-type]  # the table has these columns in this order
    return replace(row, downloadable=bool(row.downloadable))
