"""A store takes the migrations that its file lacks, and refuses a file of a newer version in the words of its owner."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from ramet.errors import RametError
from ramet.web.sqlite_store import SqliteStore, StoreSchema, is_current, open_to_read


def schema(*migrations: str) -> StoreSchema:
    return StoreSchema(
        migrations,
        name="the notes",
        hint={sqlite3.SQLITE_NOTADB: "move them away"}.get,
        newer="the notes {path!r} have version {version}, not {known}",
        newer_hint="use the newer one",
    )


OLD = schema("CREATE TABLE notes (text TEXT)")
NEW = schema(
    "CREATE TABLE notes (text TEXT)", "ALTER TABLE notes ADD COLUMN author TEXT; CREATE TABLE authors (name TEXT)"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes.sqlite"


def test_a_new_file_is_private_and_has_every_migration(path: Path) -> None:
    with closing(SqliteStore(path, NEW)) as store:
        store.execute("INSERT INTO notes (text, author) VALUES ('a', 'b')")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with closing(open_to_read(path)) as database:
        assert is_current(database, NEW)
        assert not is_current(database, OLD)


def test_an_older_file_keeps_its_rows_and_takes_the_missing_migrations(path: Path) -> None:
    with closing(SqliteStore(path, OLD)) as store:
        store.execute("INSERT INTO notes VALUES ('kept')")
    with closing(SqliteStore(path, NEW)) as store:
        assert store.execute("SELECT text, author FROM notes").fetchall() == [("kept", None)]


def test_a_file_of_a_newer_version_is_refused_in_the_words_of_its_schema(path: Path) -> None:
    SqliteStore(path, NEW).close()
    with pytest.raises(RametError, match=r"the notes '.*/notes.sqlite' have version 2, not 1") as refused:
        SqliteStore(path, OLD)
    assert refused.value.hint == "use the newer one"


def test_an_error_names_the_store_and_has_the_hint_for_its_code(path: Path) -> None:
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(RametError, match="cannot open the notes, '.*/notes.sqlite': file is not a database") as refused:
        SqliteStore(path, NEW)
    assert refused.value.hint == "move them away"


def test_a_transaction_that_fails_leaves_nothing(path: Path) -> None:
    with closing(SqliteStore(path, NEW)) as store:
        with pytest.raises(sqlite3.OperationalError, match="nowhere"):
            _write_twice(store)
        assert store.execute("SELECT count(*) FROM notes").fetchone() == (0,)


def _write_twice(store: SqliteStore) -> None:
    with store.transaction():
        store.execute("INSERT INTO notes (text) VALUES ('lost')")
        store.execute("INSERT INTO nowhere VALUES (1)")
