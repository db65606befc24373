"""What the server must still know after it was killed: keys, sandboxes and how they ended, ports of them that are
exposed, answers not to give twice.

One SQLite file, 0600, that the server and `ramet keys` open side by side. Everything here is quick enough to be called
on the event loop: commits go to the write-ahead log and do not wait for the disk, so a power cut may undo the last ones
but a kill never does. No secret is in it: of keys, requests and URLs of ports there are hashes, of answers only ids.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ramet.errors import RametError
from ramet.protocol.network import NetworkSpec
from ramet.protocol.network_requests import rule_texts
from ramet.protocol.refusing import invalid
from ramet.server import bounds, keys, secret
from ramet.server.keys import KeyLimits, KeyRow, Scope

# What each version added; user_version of the file counts how many of them it has seen.
_MIGRATIONS = (
    """
    CREATE TABLE keys (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        digest TEXT NOT NULL UNIQUE,
        scope TEXT NOT NULL,
        limits TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        revoked_ms INTEGER
    );
    CREATE UNIQUE INDEX keys_in_use_by_name ON keys (name) WHERE revoked_ms IS NULL;
    CREATE TABLE sandboxes (
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        parent TEXT,
        template TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        ended_ms INTEGER,
        cause TEXT,
        message TEXT
    );
    CREATE INDEX sandboxes_live ON sandboxes (id) WHERE ended_ms IS NULL;
    CREATE INDEX sandboxes_ended ON sandboxes (ended_ms) WHERE ended_ms IS NOT NULL;
    CREATE TABLE idempotency (
        number INTEGER PRIMARY KEY,
        owner TEXT NOT NULL,
        key TEXT NOT NULL,
        fingerprint BLOB NOT NULL,
        status INTEGER NOT NULL,
        content_type TEXT NOT NULL,
        body BLOB NOT NULL,
        created_ms INTEGER NOT NULL,
        UNIQUE (owner, key)
    );
    CREATE INDEX idempotency_created ON idempotency (created_ms);
    """,
    # Who had a key before there was a network goes on without one.
    """
    ALTER TABLE keys ADD COLUMN network TEXT NOT NULL DEFAULT '[]';
    CREATE TABLE exposures (
        sandbox TEXT NOT NULL,
        port INTEGER NOT NULL,
        owner TEXT NOT NULL,
        digest TEXT NOT NULL UNIQUE,
        nonce BLOB NOT NULL,
        created_ms INTEGER NOT NULL,
        PRIMARY KEY (sandbox, port)
    )
    """,
)

_KEY_COLUMNS = "id, name, scope, limits, created_ms, revoked_ms, network"
_EXPOSURE_COLUMNS = "sandbox, port, owner, nonce, created_ms"
_ExposureRow = tuple[str, int, str, bytes, int]

_BUSY_MS = 2000
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
        self._complain = complain
        self.secret = secret.load(self._path.with_name(secret.SECRET_NAME))
        # Requests with an idempotency key that are being answered right now, see `idempotency`.
        self.in_flight: dict[tuple[str, str], tuple[bytes, asyncio.Future[None]]] = {}
        self._keys_by_digest: dict[str, KeyRow] = {}
        self._key_names: dict[str, str] = {}
        self._keys_version = -1
        self._writes = 0
        self._pruned_at = 0.0
        _make_private(self._path)
        try:
            self._database = sqlite3.connect(self._path, timeout=_BUSY_MS / 1000, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._database.close()
                raise
        except sqlite3.Error as error:
            raise RametError(
                f"cannot open the records of the server, {str(self._path)!r}: {error}",
                hint="move the file away to start with empty records; keys must then be created again",
            ) from error

    def __repr__(self) -> str:
        return f"<Records {str(self._path)!r}>"

    def close(self) -> None:
        self._database.close()

    def _prepare(self) -> None:
        execute = self._database.execute
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        execute("PRAGMA foreign_keys = ON")
        # The worker may write this file, and others believe it: what a schema says is not carried out.
        execute("PRAGMA trusted_schema = OFF")
        with self._transaction():
            (seen,) = execute("PRAGMA user_version").fetchone()
            if seen > len(_MIGRATIONS):
                raise RametError(
                    f"the records {str(self._path)!r} are of version {seen}, and {len(_MIGRATIONS)} is the last known",
                    hint="they were written by a newer Ramet: use that one, or another --state folder",
                )
            for script in _MIGRATIONS[seen:]:
                for statement in script.split(";"):
                    execute(statement)
            execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
        self.prune()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    # Keys

    def create_key(
        self,
        name: str,
        limits: KeyLimits | None = None,
        scope: Scope = "sandboxes",
        network: NetworkSpec = bounds.NOTHING,
    ) -> tuple[KeyRow, str]:
        """A new key and its secret, which nobody can learn a second time."""
        row = KeyRow(
            id=keys.new_key_id(),
            name=keys.check_name(name),
            scope=keys.check_scope(scope),
            limits=keys.check_limits(KeyLimits() if limits is None else limits),
            created_ms=_now_ms(),
            network=network,
        )
        key = keys.new_secret()
        limits_text, network_text = json.dumps(row.limits.header()), json.dumps(rule_texts(network))
        values = (row.id, row.name, keys.digest(key), row.scope, limits_text, row.created_ms, network_text)
        try:
            self._database.execute(
                "INSERT INTO keys (id, name, digest, scope, limits, created_ms, network) VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )
        except sqlite3.IntegrityError:
            raise invalid("name", f"there is a key {name!r} already", "a name that no key in use has") from None
        self._keys_version = -1
        return row, key

    def find_key(self, key: str) -> KeyRow | None:
        """The row of a key, unless it was revoked, be it just now and by another process."""
        self._look_at_keys()
        return self._keys_by_digest.get(keys.digest(key))

    def key_name(self, owner: str) -> str:
        """What an owner is called in metrics: the name of the key, also of a revoked one."""
        self._look_at_keys()
        return self._key_names.get(owner, owner)

    def list_keys(self, *, revoked: bool = False) -> list[KeyRow]:
        """The keys in use, oldest first; with ``revoked`` also those that are not any more."""
        some = "" if revoked else "WHERE revoked_ms IS NULL"
        rows = self._database.execute(f"SELECT {_KEY_COLUMNS} FROM keys {some} ORDER BY created_ms, rowid")
        return [_key_row(row) for row in rows]

    def revoke_key(self, name_or_id: str) -> KeyRow | None:
        """End a key, by its id or its name. None: there is no such key in use."""
        with self._transaction():
            row = self._database.execute(
                f"SELECT {_KEY_COLUMNS} FROM keys WHERE revoked_ms IS NULL AND ? IN (id, name)",
                (name_or_id,),
            ).fetchone()
            if row is None:
                return None
            key_id, now_ms = row[0], _now_ms()
            self._database.execute("UPDATE keys SET revoked_ms = ? WHERE id = ?", (now_ms, key_id))
        self._keys_version = -1
        return replace(_key_row(row), revoked_ms=now_ms)

    def _look_at_keys(self) -> None:
        # Says whether another connection has committed since: a few microseconds, where reading the keys is many.
        (version,) = self._database.execute("PRAGMA data_version").fetchone()
        if version == self._keys_version:
            return
        rows = self._database.execute(f"SELECT digest, {_KEY_COLUMNS} FROM keys").fetchall()
        found = [(row[0], _key_row(row[1:])) for row in rows]
        self._keys_by_digest = {digest: row for digest, row in found if row.revoked_ms is None}
        self._key_names = {row.id: row.name for _, row in found}
        self._keys_version = version

    # Sandboxes

    def begun(self, row: SandboxFacts) -> None:
        """A sandbox is there. One that is known already is left as it is, unless it was thought to have ended."""
        with self._writing():
            self._begun([row])

    def ended(self, sandbox_id: str, cause: str, message: str) -> None:
        """A sandbox has ended. The first cause that was told stays."""
        with self._writing():
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
        with self._writing(), self._transaction():
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
        with self._transaction():
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
        with self._writing():
            self._database.execute(
                "INSERT OR REPLACE INTO idempotency (owner, key, fingerprint, status, content_type, body, created_ms) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (owner, key, fingerprint, answer.status, answer.content_type, answer.body, _now_ms()),
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What is written for later. That it cannot be must not fail the request at hand, which was carried out."""
        try:
            yield
            self._writes += 1
            if self._writes >= _PRUNE_EVERY_WRITES or time.monotonic() - self._pruned_at > _PRUNE_EVERY_SECONDS:
                self.prune()
        except sqlite3.Error as error:
            self._complain(f"cannot write the records of the server: {error}")

    # Forgetting

    def prune(self) -> None:
        """Forget what is too old, and the oldest of what is too much."""
        self._writes = 0
        self._pruned_at = time.monotonic()
        now_ms = _now_ms()
        some = f"LIMIT {_PRUNED_AT_ONCE}"
        with self._transaction():
            execute = self._database.execute
            execute("DELETE FROM keys WHERE revoked_ms < ?", (now_ms - _ENDED_KEPT_MS,))
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


def _key_row(row: tuple[str, str, str, str, int, int | None, str]) -> KeyRow:
    key_id, name, scope, limits, created_ms, revoked_ms, network = row
    return KeyRow(
        id=key_id,
        name=name,
        scope=keys.check_scope(scope),
        limits=KeyLimits.read(json.loads(limits)),
        created_ms=created_ms,
        revoked_ms=revoked_ms,
        network=bounds.read_bound(json.loads(network)),
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
