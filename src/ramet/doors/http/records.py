"""What the server remembers after it is killed: keys, sandboxes and how they ended, exposed ports, recorded answers.

One SQLite file, 0600, that the server and `ramet keys` open at the same time. Every call here is quick enough for the
event loop: commits go to the write-ahead log and do not wait for the disk, so a power cut may undo the last ones, but a
kill never does. The file holds no secret: it has hashes of keys, requests and URLs, and of answers only ids.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ramet.doors.http.access import keys, state_secret
from ramet.doors.http.access.key_records import KeyRecords
from ramet.doors.http.schema import RECORDS
from ramet.web.sqlite_store import SqliteStore

_EXPOSURE_COLUMNS = "sandbox, port, owner, nonce, created_ms"
_ExposureRow = tuple[str, int, str, bytes, int]

_ENDED_KEPT_MS = 30 * 24 * 3600 * 1000
_ANSWERS_KEPT_MS = 24 * 3600 * 1000
_UNKNOWN_KEPT_MS = 3600 * 1000  # exposures of sandboxes that are unknown, or not recorded yet
# The file stays small however busy a day is: each table keeps about this many old rows at most.
_ENDED_AT_MOST = 200_000
_ANSWERS_AT_MOST = 200_000
_PRUNE_EVERY_WRITES = 1000
_PRUNE_EVERY_SECONDS = 600.0
# Rows deleted at once. Later runs delete the rest of a backlog, so that no request waits for it.
_PRUNED_AT_ONCE = 2000


class SandboxFacts(Protocol):
    """The facts that are recorded when a sandbox begins."""

    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def template(self) -> str: ...
    @property
    def created_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """How a sandbox ended."""

    cause: str
    message: str
    ended_ms: int


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer that can be sent again. Its body holds ids, and nothing that a user sent."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class ExposedPortRecord:
    """A port of a sandbox that everybody who knows the token can reach over HTTP."""

    sandbox: str
    port: int
    owner: str
    token: str
    created_ms: int

    def __repr__(self) -> str:
        return f"<ExposedPortRecord of port {self.port} of {self.sandbox}>"


@dataclass(frozen=True, slots=True)
class Recorded:
    """An answer under its idempotency key, with the fingerprint of its request."""

    fingerprint: bytes
    answer: StoredAnswer


class ServerRecords:
    """Owns one connection to the file. Belongs to one thread."""

    def __init__(self, path: str | Path, complain: Callable[[str], None] = lambda _: None) -> None:
        """``complain`` gets a message when a write fails, for instance on a full disk; the server goes on."""
        self._path = Path(path)
        self.secret = state_secret.load(self._path.with_name(state_secret.SECRET_NAME))
        # Requests with an idempotency key that are being answered right now; see `requests.idempotency`.
        self.in_flight: dict[tuple[str, str], tuple[bytes, asyncio.Future[None]]] = {}
        self._writes = 0
        self._pruned_at = 0.0
        self._database = SqliteStore(self._path, RECORDS, complain)
        self.keys = KeyRecords(self._database)
        try:
            with self._database.writing():  # on a full disk the records can still be read
                self.prune()
        except BaseException:
            self._database.close()
            raise
        self._database.on_written = self._prune_at_times

    def __repr__(self) -> str:
        return f"<ServerRecords {str(self._path)!r}>"

    def close(self) -> None:
        self._database.close()

    # Sandboxes

    def begun(self, row: SandboxFacts) -> None:
        """Record a new sandbox. One that is known stays unchanged, unless it was recorded as ended."""
        with self._database.writing():
            self._begun([row])

    def ended(self, sandbox_id: str, cause: str, message: str) -> None:
        """Record the end of a sandbox. The first recorded cause stays."""
        with self._database.writing():
            self._database.execute(
                "UPDATE sandboxes SET ended_ms = ?, cause = ?, message = ? WHERE id = ? AND ended_ms IS NULL",
                (_now_ms(), cause, message, sandbox_id),
            )

    def ended_cause(self, owner: str, sandbox_id: str) -> Ended | None:
        """How a sandbox of this owner ended. None: it has not ended, or never existed."""
        row = self._database.execute(
            "SELECT cause, message, ended_ms FROM sandboxes WHERE id = ? AND owner = ? AND ended_ms IS NOT NULL",
            (sandbox_id, owner),
        ).fetchone()
        return None if row is None else Ended(*row)

    def reconcile(self, live: Iterable[SandboxFacts]) -> None:
        """Make the records agree with a running engine: the sandboxes that it lacks ended while no worker watched."""
        rows = list(live)
        there = {row.id for row in rows}
        with self._database.writing(), self._database.transaction():
            self._begun(rows)
            thought = self._database.execute("SELECT id FROM sandboxes WHERE ended_ms IS NULL").fetchall()
            now_ms = _now_ms()
            self._database.executemany(
                "UPDATE sandboxes SET ended_ms = ?, cause = 'lost', message = ? WHERE id = ?",
                [
                    (now_ms, f"sandbox {sandbox_id} ended with its engine, or while no server was running", sandbox_id)
                    for (sandbox_id,) in thought
                    if sandbox_id not in there
                ],
            )

    def _begun(self, rows: Iterable[SandboxFacts]) -> None:
        self._database.executemany(
            "INSERT INTO sandboxes (id, owner, parent, template, created_ms) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET ended_ms = NULL, cause = NULL, message = NULL WHERE ended_ms IS NOT NULL",
            [(row.id, row.owner, row.parent, row.template, row.created_ms) for row in rows],
        )

    # Exposed ports

    def expose(self, owner: str, sandbox_id: str, port: int, at_most: int) -> ExposedPortRecord | None:
        """Record an exposed port, or find the existing record. None: the sandbox has as many as it may have."""
        with self._database.must_write(), self._database.transaction():
            exposed = self.exposures(owner, sandbox_id)
            for known in exposed:
                if known.port == port:
                    return known
            if len(exposed) >= at_most:
                return None
            row = (sandbox_id, port, owner, os.urandom(16), _now_ms())
            new = self._exposure(row)
            self._database.execute(
                f"INSERT OR REPLACE INTO exposures ({_EXPOSURE_COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?)",
                (*row, keys.digest(new.token)),
            )
        return new

    def exposures(self, owner: str, sandbox_id: str) -> list[ExposedPortRecord]:
        """The exposed ports of a sandbox, by port."""
        rows = self._database.execute(
            f"SELECT {_EXPOSURE_COLUMNS} FROM exposures WHERE sandbox = ? AND owner = ? ORDER BY port",
            (sandbox_id, owner),
        )
        return [self._exposure(row) for row in rows.fetchall()]

    def unexpose(self, owner: str, sandbox_id: str, port: int) -> bool:
        """Remove an exposed port. Returns whether it was exposed."""
        with self._database.must_write():
            gone = self._database.execute(
                "DELETE FROM exposures WHERE sandbox = ? AND owner = ? AND port = ?", (sandbox_id, owner, port)
            )
        return gone.rowcount > 0

    def exposure(self, token: str) -> ExposedPortRecord | None:
        """Find the port of a token. The lookup is by hash, so that its timing reveals nothing about other tokens."""
        row = self._database.execute(
            f"SELECT {_EXPOSURE_COLUMNS} FROM exposures WHERE digest = ?", (keys.digest(token),)
        ).fetchone()
        return None if row is None else self._exposure(row)

    def _exposure(self, row: _ExposureRow) -> ExposedPortRecord:
        """The exposure with its token, which is not stored but derived from the row and the secret beside the file."""
        sandbox_id, port, owner, nonce, created_ms = row
        token = self.secret.token(b"%s\0%d\0%s" % (sandbox_id.encode("ascii"), port, nonce))
        return ExposedPortRecord(sandbox_id, port, owner, token, created_ms)

    # Recorded answers

    def recall(self, owner: str, key: str) -> Recorded | None:
        row = self._database.execute(
            "SELECT fingerprint, status, content_type, body FROM idempotency "
            "WHERE owner = ? AND key = ? AND created_ms > ?",
            (owner, key, _now_ms() - _ANSWERS_KEPT_MS),
        ).fetchone()
        return None if row is None else Recorded(row[0], StoredAnswer(*row[1:]))

    def record(self, owner: str, key: str, fingerprint: bytes, answer: StoredAnswer) -> None:
        with self._database.writing():
            self._database.execute(
                "INSERT OR REPLACE INTO idempotency (owner, key, fingerprint, status, content_type, body, created_ms) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (owner, key, fingerprint, answer.status, answer.content_type, answer.body, _now_ms()),
            )

    # Pruning

    def _prune_at_times(self) -> None:
        self._writes += 1
        if self._writes >= _PRUNE_EVERY_WRITES or time.monotonic() - self._pruned_at > _PRUNE_EVERY_SECONDS:
            self.prune()

    def prune(self) -> None:
        """Delete rows that are too old, and the oldest of those that are too many."""
        self._writes = 0
        self._pruned_at = time.monotonic()
        now_ms = _now_ms()
        some = f"LIMIT {_PRUNED_AT_ONCE}"
        with self._database.transaction():
            execute = self._database.execute
            self.keys.prune(_ENDED_KEPT_MS)
            # Exposures of ended sandboxes stay as long as the records of their end, so that late requests learn what
            # happened.
            old = "SELECT rowid FROM exposures WHERE created_ms < ? AND sandbox NOT IN (SELECT id FROM sandboxes)"
            execute(f"DELETE FROM exposures WHERE rowid IN ({old} {some})", (now_ms - _UNKNOWN_KEPT_MS,))
            for table, moment, kept_ms, at_most in (
                ("sandboxes", "ended_ms", _ENDED_KEPT_MS, _ENDED_AT_MOST),
                ("idempotency", "created_ms", _ANSWERS_KEPT_MS, _ANSWERS_AT_MOST),
            ):
                old = f"SELECT rowid FROM {table} WHERE {moment} < ? {some}"
                execute(f"DELETE FROM {table} WHERE rowid IN ({old})", (now_ms - kept_ms,))
                (count,) = execute(f"SELECT count(*) FROM {table} WHERE {moment} IS NOT NULL").fetchone()
                if count > at_most:
                    oldest = f"SELECT rowid FROM {table} WHERE {moment} IS NOT NULL ORDER BY {moment} LIMIT ?"
                    execute(f"DELETE FROM {table} WHERE rowid IN ({oldest})", (min(count - at_most, _PRUNED_AT_ONCE),))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
