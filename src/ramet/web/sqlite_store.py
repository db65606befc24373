"""A store in one SQLite file: opened privately, migrated step by step, written to, and explained when that fails."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ramet.errors import RametError

_BUSY_MS = 2000
_COMPLAIN_EVERY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class StoreSchema:
    """The tables of a kind of store, and the words in which errors speak of it.

    Each version of the file is the one before it plus one migration. A released migration is never changed. A new one
    goes to the end: a store that opens an older file carries out the missing ones, and ``user_version`` of the file
    counts how many it has seen.
    """

    migrations: Sequence[str]
    name: str  # in "cannot open NAME"
    hint: Callable[[int], str | None]  # the cure for an error with this primary result code of SQLite
    newer: str  # the message about a file with more migrations than we know; has {path!r}, {version} and {known}
    newer_hint: str

    def too_new(self, version: int, path: Path) -> RametError:
        message = self.newer.format(path=str(path), version=version, known=len(self.migrations))
        return RametError(message, hint=self.newer_hint)

    def explained(self, error: sqlite3.Error, what: str, path: Path | None = None) -> RametError:
        """The error for users: what could not be done to the store, and what helps."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the higher bits only refine the primary code
        return RametError(
            f"cannot {what} {self.name}{'' if path is None else f', {str(path)!r}'}: {error}",
            hint=self.hint(code),
            details={"status": _STATUSES[code]} if code in _STATUSES else None,
        )


# HTTP statuses: 507 Insufficient Storage, and 503 where a later attempt may succeed.
_STATUSES = {
    sqlite3.SQLITE_FULL: 507,
    sqlite3.SQLITE_IOERR: 507,
    sqlite3.SQLITE_BUSY: 503,
    sqlite3.SQLITE_LOCKED: 503,
}


class SqliteStore:
    """Owns one connection to the file. Belongs to one thread."""

    def __init__(self, path: Path, schema: StoreSchema, complain: Callable[[str], None] = lambda _: None) -> None:
        """Open the file, or create it, and migrate it. ``complain`` gets a message when ``writing`` fails.

        Raises RametError if the file cannot be opened or migrated, or if a newer Ramet wrote it.
        """
        self._path = path
        self._schema = schema
        self._complain = complain
        self.on_written: Callable[[], None] = lambda: None
        self._unwritten = 0
        self._complained_at = -_COMPLAIN_EVERY_SECONDS
        self._make_private()
        try:
            self._connection = sqlite3.connect(path, timeout=_BUSY_MS / 1000, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            raise schema.explained(error, "open", path) from error

    def __repr__(self) -> str:
        return f"<SqliteStore {str(self._path)!r}>"

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def executemany(self, statement: str, rows: Iterable[Sequence[object]]) -> sqlite3.Cursor:
        return self._connection.executemany(statement, rows)

    def _make_private(self) -> None:
        """Create the file before SQLite would, so that other users can never read it.

        SQLite gives its helper files the mode of the file.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(descriptor, 0o600)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise RametError(f"cannot open {self._schema.name}, {str(self._path)!r}: {error.strerror}") from None

    def _prepare(self) -> None:
        self.execute("PRAGMA journal_mode = WAL")
        self.execute("PRAGMA synchronous = NORMAL")
        self.execute("PRAGMA foreign_keys = ON")
        # A worker that an attacker took over can write this file, and other processes read it: SQLite must not run
        # functions that the file's schema names.
        self.execute("PRAGMA trusted_schema = OFF")
        known = len(self._schema.migrations)
        (seen,) = self.execute("PRAGMA user_version").fetchone()
        if seen < known:
            self._migrate(known)
        elif seen > known:
            raise self._schema.too_new(seen, self._path)

    def _migrate(self, known: int) -> None:
        with self.transaction():
            # Read again under the lock: another process may have migrated the file since `_prepare` looked.
            (seen,) = self.execute("PRAGMA user_version").fetchone()
            if seen > known:
                raise self._schema.too_new(seen, self._path)
            for script in self._schema.migrations[seen:]:
                for statement in script.split(";"):
                    self.execute(statement)
            self.execute(f"PRAGMA user_version = {known}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all statements of the block, or none. IMMEDIATE: take the write lock before reading anything."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite rolls back by itself after some errors, such as a full disk
                self.execute("ROLLBACK")
            raise

    @contextmanager
    def must_write(self) -> Iterator[None]:
        """For a write that the caller asked for: raise RametError if it fails. IntegrityError passes unchanged."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            # Without the path, because clients of the server get this message too.
            raise self._schema.explained(error, "write") from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """For a write beside a request that was carried out already: a failure is logged and does not fail it."""
        try:
            yield
            self.on_written()
        except sqlite3.Error as error:
            self._unwritten += 1
            # A full disk stays full for a while: one line a minute is enough.
            now = time.monotonic()
            if now - self._complained_at >= _COMPLAIN_EVERY_SECONDS:
                self._complained_at = now
                times = "" if self._unwritten == 1 else f" ({self._unwritten} times since the last such line)"
                self._unwritten = 0
                self._complain(f"cannot write {self._schema.name}: {error}{times}")


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that writes nothing, so that it works on a full or read-only disk. Raises sqlite3.Error."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    database = sqlite3.connect(uri, uri=True, timeout=_BUSY_MS / 1000, isolation_level=None)
    try:
        database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        return database
    except sqlite3.OperationalError:
        database.close()
        # A reader of a WAL file creates the -shm file beside it, for which a full disk has no room. If there is no log
        # to read either, the file alone is the whole truth and can be opened as immutable.
        if _size(path.with_name(f"{path.name}-wal")):
            raise
    return sqlite3.connect(f"{uri}&immutable=1", uri=True, isolation_level=None)


def is_current(database: sqlite3.Connection, schema: StoreSchema) -> bool:
    """Whether the file has exactly the migrations of the schema."""
    (seen,) = database.execute("PRAGMA user_version").fetchone()
    return bool(seen == len(schema.migrations))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def now_ms() -> int:
    """Milliseconds since the epoch, as the tables hold them."""
    return time.time_ns() // 1_000_000
