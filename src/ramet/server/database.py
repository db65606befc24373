"""The SQLite file of the records: opened, brought up to date, written to; and what is said when that fails."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ramet.errors import RametError
from ramet.server.schema import MIGRATIONS

_BUSY_MS = 2000
_COMPLAIN_EVERY_SECONDS = 60.0


class Database:
    """Owns one connection to the file. Used from one thread."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        self._path = path
        self._complain = complain
        self.on_written: Callable[[], None] = lambda: None
        self._unwritten = 0
        self._complained_at = -_COMPLAIN_EVERY_SECONDS
        _make_private(path)
        try:
            self._connection = sqlite3.connect(path, timeout=_BUSY_MS / 1000, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            raise explained(error, "open", path) from error

    def __repr__(self) -> str:
        return f"<Database {str(self._path)!r}>"

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def executemany(self, statement: str, rows: Iterable[Sequence[object]]) -> sqlite3.Cursor:
        return self._connection.executemany(statement, rows)

    def _prepare(self) -> None:
        self.execute("PRAGMA journal_mode = WAL")
        self.execute("PRAGMA synchronous = NORMAL")
        self.execute("PRAGMA foreign_keys = ON")
        # The worker may write this file, and others believe it: what a schema says is not carried out.
        self.execute("PRAGMA trusted_schema = OFF")
        (seen,) = self.execute("PRAGMA user_version").fetchone()
        if seen < len(MIGRATIONS):
            self._migrate()
        elif seen > len(MIGRATIONS):
            raise _too_new(seen, self._path)

    def _migrate(self) -> None:
        with self.transaction():
            (seen,) = self.execute("PRAGMA user_version").fetchone()  # again: another process may have been quicker
            if seen > len(MIGRATIONS):
                raise _too_new(seen, self._path)
            for script in MIGRATIONS[seen:]:
                for statement in script.split(";"):
                    self.execute(statement)
            self.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite has rolled back by itself after some errors, a full disk too
                self.execute("ROLLBACK")
            raise

    @contextmanager
    def must_write(self) -> Iterator[None]:
        """What the caller asked for is to be written; that it cannot be is the answer."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            # Without the path: clients of the server are told this too.
            raise explained(error, "write") from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What is written for later. That it cannot be must not fail the request at hand, which was carried out."""
        try:
            yield
            self.on_written()
        except sqlite3.Error as error:
            self._unwritten += 1
            # A disk that is full stays so for a while: one line in a minute is enough to know.
            now = time.monotonic()
            if now - self._complained_at >= _COMPLAIN_EVERY_SECONDS:
                self._complained_at = now
                times = "" if self._unwritten == 1 else f" ({self._unwritten} times since the last such line)"
                self._unwritten = 0
                self._complain(f"cannot write the records of the server: {error}{times}")


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that writes nothing, so that a full or read-only disk does not matter."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    database = sqlite3.connect(uri, uri=True, timeout=_BUSY_MS / 1000, isolation_level=None)
    try:
        database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        return database
    except sqlite3.OperationalError:
        database.close()
        # To read beside a writer takes a small file of its own, for which there may be no room. Without a log there is
        # nothing to be read but the file itself.
        if _size(path.with_name(f"{path.name}-wal")):
            raise
    return sqlite3.connect(f"{uri}&immutable=1", uri=True, isolation_level=None)


def is_current(database: sqlite3.Connection) -> bool:
    """Whether the file has seen every migration, and no more."""
    (seen,) = database.execute("PRAGMA user_version").fetchone()
    return bool(seen == len(MIGRATIONS))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_HINTS = {
    sqlite3.SQLITE_FULL: "make room on that disk",
    sqlite3.SQLITE_IOERR: "is there room on that disk, and does it work? the records are left as they are",
    sqlite3.SQLITE_CANTOPEN: "is there room on that disk, and may you write there?",
    sqlite3.SQLITE_READONLY: "the file, its folder or the file system is read-only for you",
    sqlite3.SQLITE_BUSY: "another program writes to them; try again in a moment",
    sqlite3.SQLITE_LOCKED: "another program writes to them; try again in a moment",
}
# Of HTTP: insufficient storage, and try again.
_STATUSES = {
    sqlite3.SQLITE_FULL: 507,
    sqlite3.SQLITE_IOERR: 507,
    sqlite3.SQLITE_BUSY: 503,
    sqlite3.SQLITE_LOCKED: 503,
}


def explained(error: sqlite3.Error, what: str, path: Path | None = None) -> RametError:
    """What could not be done to the records, and what helps: to move them away only where they are broken."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of it tells more of the same kind
    hint = _HINTS.get(code)
    if code in _BROKEN:
        hint = "move the file away to start with empty records; keys must then be created again"
    return RametError(
        f"cannot {what} the records of the server{'' if path is None else f', {str(path)!r}'}: {error}",
        hint=hint,
        details={"status": _STATUSES[code]} if code in _STATUSES else None,
    )


def _too_new(seen: int, path: Path) -> RametError:
    return RametError(
        f"the records {str(path)!r} have version {seen}, but this Ramet knows only up to {len(MIGRATIONS)}",
        hint="a newer Ramet wrote them: use that one, or another --state folder",
    )


def _make_private(path: Path) -> None:
    """The file, readable by its owner only before anything is in it; SQLite gives its helper files the same mode."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RametError(f"cannot open the records of the server, {str(path)!r}: {error.strerror}") from None
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
