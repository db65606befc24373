"""What the server must still know after it was killed: keys, sandboxes and how they ended, ports of them that are
exposed, answers not to give twice.

One SQLite file, 0600, that the server and `ramet keys` open side by side. Everything here is quick enough to be called
on the event loop: commits go to the write-ahead log and do not wait for the disk, so a power cut may undo the last ones
but a kill never does. No secret is in it: of keys, requests and URLs of ports there are hashes, of answers only ids.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ramet.server import keys, secret
from ramet.server.database import Database
from ramet.server.key_records import KeyRecords

_EXPOSURE_COLUMNS = "sandbox, port, owner, nonce, created_ms"
_ExposureRow = tuple[str, int, str, bytes, int]

_ENDED_KEPT_MS = 30 * 24 * 3600 * 1000
_ANSWERS_KEPT_MS = 24 * 3600 * 1000
_UNKNOWN_KEPT_MS = 3600 * 1000  # exposures of sandboxes that are not recorded, or not yet
# However busy a day is, the file stays small: of each table about so many old rows at most.
_ENDED_AT_MOST = 200_000
_ANSWERS_AT_MOST = 200_000
_PRUNE_EVERY_WRITES = 1000
_PRUNE_EVERY_SECONDS = 600.0
# Deleted in one go; a longer backlog is worked off by the next ones, so that no request waits for it.
_PRUNED_AT_ONCE = 2000


class SandboxFacts(Protocol):
    """What is recorded of a sandbox when it begins."""

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
    """An answer that can be given again. Its body holds ids, and nothing that a user sent."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Exposure:
    """A port of a sandbox that can be reached over HTTP, by whoever knows the token."""

    sandbox: str
    port: int
    owner: str
    token: str
    created_ms: int

    def __repr__(self) -> str:
        return f"<Exposure of port {self.port} of {self.sandbox}>"


@dataclass(frozen=True, slots=True)
class Recorded:
    """An answer under its idempotency key, with the digest of the request it answered."""

    fingerprint: bytes
    answer: StoredAnswer


class Records:
    """Owns one connection to the file. Used from one thread."""

    def __init__(self, path: str | Path, complain: Callable[[str], None] = lambda _: None) -> None:
        """``complain`` hears of what could not be written, on a full disk for instance; the server goes on without."""
        self._path = Path(path)
        self.secret = secret.load(self._path.with_name(secret.SECRET_NAME))
        # Requests with an idempotency key that are being answered right now, see `idempotency`.
        self.in_flight: dict[tuple[str, str], tuple[bytes, asyncio.Future[None]]] = {}
        self._writes = 0
        self._pruned_at = 0.0
        self._database = Database(self._path, complain)
        self.keys = KeyRecords(self._database)
        try:
            with self._database.writing():  # on a full disk what is there can still be read
                self.prune()
        except BaseException:
            self._database.close()
            raise
        self._database.on_written = self._prune_at_times

    def __repr__(self) -> str:
        return f"<Records {str(self._path)!r}>"

    def close(self) -> None:
        self._database.close()

    # Sandboxes

    def begun(self, row: SandboxFacts) -> None:
        """A sandbox is there. One that is known already is left as it is, unless it was thought to have ended."""
        with self._database.writing():
            self._begun([row])

    def ended(self, sandbox_id: str, cause: str, message: str) -> None:
        """A sandbox has ended. The first cause that was told stays."""
        with self._database.writing():
            self._database.execute(
                "UPDATE sandboxes SET ended_ms = ?, cause = ?, message = ? WHERE id = ? AND ended_ms IS NULL",
                (_now_ms(), cause, message, sandbox_id),
            )

    def ended_cause(self, owner: str, sandbox_id: str) -> Ended | None:
        """How a sandbox of this owner ended, None if it has not, or if there never was such a sandbox."""
        row = self._database.execute(
            "SELECT cause, message, ended_ms FROM sandboxes WHERE id = ? AND owner = ? AND ended_ms IS NOT NULL",
            (sandbox_id, owner),
        ).fetchone()
        return None if row is None else Ended(*row)

    def reconcile(self, live: Iterable[SandboxFacts]) -> None:
        """Make the records agree with what an engine has: others ended while nobody watched, or with their engine."""
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

    # Ports that are exposed

    def expose(self, owner: str, sandbox_id: str, port: int, at_most: int) -> Exposure | None:
        """The port from now on, or as it is already. None: the sandbox has as many as it may."""
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

    def exposures(self, owner: str, sandbox_id: str) -> list[Exposure]:
        """By port."""
        rows = self._database.execute(
            f"SELECT {_EXPOSURE_COLUMNS} FROM exposures WHERE sandbox = ? AND owner = ? ORDER BY port",
            (sandbox_id, owner),
        )
        return [self._exposure(row) for row in rows.fetchall()]

    def unexpose(self, owner: str, sandbox_id: str, port: int) -> bool:
        """Whether it was."""
        with self._database.must_write():
            gone = self._database.execute(
                "DELETE FROM exposures WHERE sandbox = ? AND owner = ? AND port = ?", (sandbox_id, owner, port)
            )
        return gone.rowcount > 0

    def exposure(self, token: str) -> Exposure | None:
        """Where a token leads. It is looked up by its hash: how long that takes says nothing about any other."""
        row = self._database.execute(
            f"SELECT {_EXPOSURE_COLUMNS} FROM exposures WHERE digest = ?", (keys.digest(token),)
        ).fetchone()
        return None if row is None else self._exposure(row)

    def _exposure(self, row: _ExposureRow) -> Exposure:
        """The token is not in the records: it is made of what is in them, and of the secret beside them."""
        sandbox_id, port, owner, nonce, created_ms = row
        token = self.secret.token(b"%s\0%d\0%s" % (sandbox_id.encode("ascii"), port, nonce))
        return Exposure(sandbox_id, port, owner, token, created_ms)

    # Answers that are not to be given twice

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

    # Forgetting

    def _prune_at_times(self) -> None:
        self._writes += 1
        if self._writes >= _PRUNE_EVERY_WRITES or time.monotonic() - self._pruned_at > _PRUNE_EVERY_SECONDS:
            self.prune()

    def prune(self) -> None:
        """Forget what is too old, and the oldest of what is too much."""
        self._writes = 0
        self._pruned_at = time.monotonic()
        now_ms = _now_ms()
        some = f"LIMIT {_PRUNED_AT_ONCE}"
        with self._database.transaction():
            execute = self._database.execute
            self.keys.prune(_ENDED_KEPT_MS)
            # Those of ended sandboxes are kept as long as these: whoever comes late is told what happened.
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
