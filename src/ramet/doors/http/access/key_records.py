"""The table of keys: create, find, change, rotate and revoke them, and note when each was last used."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ramet.doors.http.access import keys, network_bounds
from ramet.doors.http.access.keys import KeyLimits, KeyRow, Scope
from ramet.doors.http.schema import RECORDS
from ramet.protocol.argument_errors import must, wrong_argument
from ramet.protocol.network.requests import rule_texts
from ramet.protocol.network.specs import NetworkSpec
from ramet.web.sqlite_store import SqliteStore, is_current, now_ms, open_to_read

_COLUMNS = "id, name, scope, limits, created_ms, revoked_ms, network, expires_ms, last_used_ms"
# The last use of a key is written at most this often: lists show it to the minute, and most requests cost no write.
_USE_EVERY_SECONDS = 60.0

_Row = tuple[str, str, str, str, int, int | None, str, int | None, int | None]


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change of a key. None leaves a value unchanged."""

    limits: Mapping[str, int | None] = field(default_factory=dict)  # by name; missing ones stay unchanged
    network: NetworkSpec | None = None
    expires_ms: int | None = None
    never_expires: bool = False


@dataclass(frozen=True, slots=True)
class _Secret:
    """A secret of a key. An earlier one, from before a rotation, has an end."""

    key: KeyRow
    until_ms: int | None = None

    def opens(self, now: int) -> bool:
        return self.until_ms is None or now < self.until_ms


class KeyRecords:
    """The tables of keys.

    A server and `ramet keys` use them at the same time, and each sees the other's changes at once.
    """

    def __init__(self, database: SqliteStore) -> None:
        self._database = database
        self._by_digest: dict[str, _Secret] = {}
        self._names: dict[str, str] = {}
        self._for_sandboxes = False
        self._version = -1
        self._used: dict[str, float] = {}  # when the last use of each key was written, by id

    def create(
        self,
        name: str,
        limits: KeyLimits | None = None,
        scope: Scope = "sandboxes",
        network: NetworkSpec = network_bounds.NOTHING,
        expires_ms: int | None = None,
    ) -> tuple[KeyRow, str]:
        """Create a key. Returns its row and its secret, which is stored nowhere."""
        row = KeyRow(
            id=keys.new_key_id(),
            name=keys.check_name(name),
            scope=keys.check_scope(scope),
            limits=keys.check_limits(KeyLimits() if limits is None else limits),
            created_ms=now_ms(),
            network=network,
            expires_ms=_check_expiry(expires_ms),
        )
        secret = keys.new_secret()
        values = (row.id, row.name, keys.digest(secret), row.scope, _written(row.limits), row.created_ms)
        try:
            with self._database.must_write():
                self._database.execute(
                    "INSERT INTO keys (id, name, digest, scope, limits, created_ms, network, expires_ms) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*values, _written_rules(network), expires_ms),
                )
        except sqlite3.IntegrityError:
            raise wrong_argument("name", f"there is a key {name!r} already", hint="choose another name") from None
        self._version = -1
        return row, secret

    def find(self, secret: str) -> KeyRow | None:
        """The row of a key, expired or not.

        None: the secret is unknown, or its key was revoked, even by another process.
        """
        self._look()
        found = self._by_digest.get(keys.digest(secret))
        return found.key if found is not None and found.opens(now_ms()) else None

    def used(self, key: KeyRow) -> None:
        """Note that a key was used. Writes to the file at most once a minute for each key."""
        now = time.monotonic()
        if now - self._used.get(key.id, -_USE_EVERY_SECONDS) < _USE_EVERY_SECONDS:
            return
        self._used[key.id] = now  # even if the write fails: a full disk is not tried again at every request
        with self._database.writing():
            self._database.execute("UPDATE keys SET last_used_ms = ? WHERE id = ?", (now_ms(), key.id))

    @property
    def any_for_sandboxes(self) -> bool:
        """Whether there is a key for sandboxes, or a revoked one that is not forgotten yet."""
        self._look()
        return self._for_sandboxes

    def name_of(self, owner: str) -> str:
        """The label of an owner in metrics: the name of its key, even of a revoked one."""
        self._look()
        return self._names.get(owner, owner)

    def rows(self, *, revoked: bool = False) -> list[KeyRow]:
        """The keys in use, including expired ones, oldest first; with ``revoked``, the revoked ones too."""
        some = "" if revoked else "WHERE revoked_ms IS NULL"
        rows = self._database.execute(f"SELECT {_COLUMNS} FROM keys {some} ORDER BY created_ms, rowid")
        return [_key_row(row) for row in rows]

    def revoke(self, name_or_id: str) -> KeyRow | None:
        """Revoke a key, given by id or name. None: there is no such key in use."""
        with self._changing(name_or_id) as row:
            if row is None:
                return None
            moment_ms = now_ms()
            self._database.execute("UPDATE keys SET revoked_ms = ? WHERE id = ?", (moment_ms, row.id))
        return replace(row, revoked_ms=moment_ms)

    def change(self, name_or_id: str, change: KeyChange) -> KeyRow | None:
        """Change the limits, the network or the expiry of a key. None: there is no such key in use."""
        with self._changing(name_or_id) as row:
            if row is None:
                return None
            row = _changed(row, change)
            self._database.execute(
                "UPDATE keys SET limits = ?, network = ?, expires_ms = ? WHERE id = ?",
                (_written(row.limits), _written_rules(row.network), row.expires_ms, row.id),
            )
        return row

    def rotate(self, name_or_id: str, grace_seconds: float, change: KeyChange) -> tuple[KeyRow, str] | None:
        """Give a key a new secret. Its earlier secrets stay valid for the grace period, or until their own earlier end.

        None: there is no such key in use.
        """
        secret = keys.new_secret()
        with self._changing(name_or_id) as row:
            if row is None:
                return None
            row = _changed(row, change)
            if row.expired(now_ms()):
                raise must("expires", f"be given: key {row.name!r} has expired", None)
            until_ms = now_ms() + int(grace_seconds * 1000)
            execute = self._database.execute
            execute("UPDATE earlier_secrets SET until_ms = min(until_ms, ?) WHERE key = ?", (until_ms, row.id))
            execute("DELETE FROM earlier_secrets WHERE until_ms <= ?", (now_ms(),))
            execute(
                "INSERT INTO earlier_secrets (digest, key, until_ms) SELECT digest, id, ? FROM keys "
                "WHERE id = ? AND ? > ?",
                (until_ms, row.id, until_ms, now_ms()),
            )
            execute(
                "UPDATE keys SET digest = ?, expires_ms = ? WHERE id = ?",
                (keys.digest(secret), row.expires_ms, row.id),
            )
        return row, secret

    def prune(self, kept_ms: int) -> None:
        """Forget keys that were revoked longer ago than this, and earlier secrets that have ended."""
        moment_ms = now_ms()
        self._database.execute("DELETE FROM keys WHERE revoked_ms < ?", (moment_ms - kept_ms,))
        self._database.execute("DELETE FROM earlier_secrets WHERE until_ms < ?", (moment_ms,))

    @contextmanager
    def _changing(self, name_or_id: str) -> Iterator[KeyRow | None]:
        with self._database.must_write(), self._database.transaction():
            row = self._database.execute(
                f"SELECT {_COLUMNS} FROM keys WHERE revoked_ms IS NULL AND ? IN (id, name)", (name_or_id,)
            ).fetchone()
            yield None if row is None else _key_row(row)
        self._version = -1

    def _look(self) -> None:
        # Changes when another connection has committed. Asking costs a few microseconds, much less than reading all
        # keys.
        (version,) = self._database.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return
        rows = self._database.execute(f"SELECT digest, {_COLUMNS} FROM keys").fetchall()
        found = [(row[0], _key_row(row[1:])) for row in rows]
        by_id = {row.id: row for _, row in found if row.revoked_ms is None}
        self._by_digest = {digest: _Secret(row) for digest, row in found if row.revoked_ms is None}
        for digest, key_id, until_ms in self._database.execute("SELECT digest, key, until_ms FROM earlier_secrets"):
            if key_id in by_id:
                self._by_digest[digest] = _Secret(by_id[key_id], until_ms)
        self._names = {row.id: row.name for _, row in found}
        self._for_sandboxes = any(row.scope != "metrics" for _, row in found)
        self._version = version


def read_keys(path: Path) -> list[KeyRow]:
    """The keys in use, oldest first. Writes nothing, so that it works on a full or read-only disk."""
    try:
        with closing(open_to_read(path)) as database:
            if is_current(database, RECORDS):
                return _in_use(database)
    except sqlite3.Error as error:
        raise RECORDS.explained(error, "read", path) from error
    # A file of another version: migrate it first, or refuse it.
    with closing(SqliteStore(path, RECORDS)) as current:
        return KeyRecords(current).rows()


def _in_use(database: sqlite3.Connection) -> list[KeyRow]:
    rows = database.execute(f"SELECT {_COLUMNS} FROM keys WHERE revoked_ms IS NULL ORDER BY created_ms, rowid")
    return [_key_row(row) for row in rows]


def _changed(row: KeyRow, change: KeyChange) -> KeyRow:
    if change.limits:
        row = replace(row, limits=keys.check_limits(replace(row.limits, **change.limits)))
    if change.network is not None:
        row = replace(row, network=change.network)
    if change.never_expires:
        return replace(row, expires_ms=None)
    return row if change.expires_ms is None else replace(row, expires_ms=_check_expiry(change.expires_ms))


def _check_expiry(expires_ms: int | None) -> int | None:
    if expires_ms is not None and expires_ms <= now_ms():
        raise must("expires_ms", "be in the future", expires_ms)
    return expires_ms


def _written(limits: KeyLimits) -> str:
    return json.dumps(limits.header())


def _written_rules(network: NetworkSpec) -> str:
    return json.dumps(rule_texts(network))


def _key_row(row: _Row) -> KeyRow:
    key_id, name, scope, limits, created_ms, revoked_ms, network, expires_ms, last_used_ms = row
    return KeyRow(
        id=key_id,
        name=name,
        scope=keys.check_scope(scope),
        limits=KeyLimits.read(json.loads(limits)),
        created_ms=created_ms,
        revoked_ms=revoked_ms,
        network=network_bounds.read_bound(json.loads(network)),
        expires_ms=expires_ms,
        last_used_ms=last_used_ms,
    )
