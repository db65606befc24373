"""The tables of the server's records, and the hints for errors about them."""

from __future__ import annotations

import sqlite3

from ramet.web.sqlite_store import StoreSchema

MIGRATIONS = (
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
    # A key from before there was a network stays without one.
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
    # A key from before keys could expire has no end. A rotated key keeps its id; each earlier secret has its own end.
    """
    ALTER TABLE keys ADD COLUMN expires_ms INTEGER;
    ALTER TABLE keys ADD COLUMN last_used_ms INTEGER;
    CREATE TABLE earlier_secrets (
        digest TEXT PRIMARY KEY,
        key TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE,
        until_ms INTEGER NOT NULL
    );
    CREATE INDEX earlier_secrets_by_key ON earlier_secrets (key)
    """,
)

_BROKEN = "move the file away to start with empty records; keys must then be created again"
_HINTS = {
    sqlite3.SQLITE_FULL: "make room on that disk",
    sqlite3.SQLITE_IOERR: "is there room on that disk, and does it work? the records are left as they are",
    sqlite3.SQLITE_CANTOPEN: "is there room on that disk, and may you write there?",
    sqlite3.SQLITE_READONLY: "the file, its folder or the file system is read-only for you",
    sqlite3.SQLITE_BUSY: "another program writes to them; try again in a moment",
    sqlite3.SQLITE_LOCKED: "another program writes to them; try again in a moment",
    # To move the records away helps with a broken file only.
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_NOTADB: _BROKEN,
}

RECORDS = StoreSchema(
    MIGRATIONS,
    name="the records of the server",
    hint=_HINTS.get,
    newer="the records {path!r} have version {version}, but this Ramet knows only up to {known}",
    newer_hint="a newer Ramet wrote them: use that one, or another --state folder",
)
