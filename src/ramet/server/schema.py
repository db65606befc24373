"""The tables of the records, as steps: each version of the file is the one before it and one step more.

A step that was released is never changed. Add a new one at the end: a server that starts on an older state folder takes
the missing steps, and ``user_version`` of the file counts how many it has taken.
"""

from __future__ import annotations

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
    # A key made before keys could expire never does. A rotated key keeps its id; its earlier secrets end one by one.
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
