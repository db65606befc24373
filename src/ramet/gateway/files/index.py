"""The rows of the file store: which files there are, whose, and until when."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ramet.errors import RametError

# What each version added; user_version of the file counts how many of them it has seen.
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
_WRITTEN = "id, owner, filename, mime_type, size_bytes, created_seconds, downloadable, expires_seconds, container"
_COLUMNS = f"{_WRITTEN}, state, number"
_LIVE = "owner = ? AND state = 'live' AND (expires_seconds IS NULL OR expires_seconds > ?)"


# Of an expired or deleted file the content is gone. Its row stays a while: to say so, and for lists to go on behind it.
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
    container: str | None  # the one whose code made it
    state: FileState = "live"
    number: int = 0  # in order of arrival

    def expired(self, now: float) -> bool:
        return self.expires_seconds is not None and self.expires_seconds <= now


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows, the newest first, and whether there are more in the direction that was asked for."""

    rows: tuple[FileRow, ...]
    more: bool


class FileIndex:
    """Owns one connection to the SQLite file. Used from one thread; everything here is quick."""

    def __init__(self, path: Path) -> None:
        # Made before SQLite would, so that it is nobody else's to read from its first moment.
        path.touch(mode=0o600)
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            try:
                self._prepare(path)
                self._usage = self._count()
                self._total_bytes = sum(size for _, size in self._usage.values())
            except BaseException:
                self._database.close()
                raise
        except sqlite3.Error as error:
            raise RametError(
                f"cannot open the index of the files, {str(path)!r}: {error}",
                hint="move its folder away to start with no files",
            ) from error

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
            return None  # none of ours; and SQLite takes no lone surrogates
        found = self._database.execute(
            f"SELECT {_COLUMNS} FROM files WHERE id = ? AND owner = ?", (file_id, owner)
        ).fetchone()
        return None if found is None else _row(found)

    def page(self, owner: str, now: float, limit: int, after: str | None, before: str | None) -> Page:
        """Rows older than ``after``, or newer than ``before`` and next to it. An unknown id is like none."""
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
        """Mark what has expired; its ids, for the content to be removed. Rows of long ago are dropped."""
        with self._transaction():
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
        """Of all files that have content."""
        return {file_id for (file_id,) in self._database.execute("SELECT id FROM files WHERE state = 'live'")}

    def usage(self, owner: str) -> tuple[int, int]:
        """How many files an owner has, and how many bytes they are."""
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

    def _prepare(self, path: Path) -> None:
        execute = self._database.execute
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        with self._transaction():
            (seen,) = execute("PRAGMA user_version").fetchone()
            if seen > len(_MIGRATIONS):
                raise RametError(
                    f"the index {str(path)!r} has version {seen}, but this Ramet knows only up to {len(_MIGRATIONS)}",
                    hint="a newer Ramet wrote it: use that one, or another folder",
                )
            for script in _MIGRATIONS[seen:]:
                for statement in script.split(";"):
                    execute(statement)
            execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def _row(values: tuple[object, ...]) -> FileRow:
    row = FileRow(*values)  # type: ignore[arg-type]  # the table has these columns in this order
    return replace(row, downloadable=bool(row.downloadable))
