"""Keys are shown once, kept as hashes, and end at once when they are revoked, whoever revokes them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.doors.http import schema
from ramet.doors.http.access.keys import KeyLimits, digest
from ramet.doors.http.access.network_bounds import read_bound
from ramet.doors.http.records import ServerRecords
from ramet.errors import InvalidArgument
from ramet.protocol.network.requests import rule_texts
from ramet.protocol.network.specs import NetworkSpec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ramet.db"


@pytest.fixture
def records(path: Path) -> Iterator[ServerRecords]:
    opened = ServerRecords(path)
    yield opened
    opened.close()


def test_a_key_is_found_by_its_secret_and_no_other(records: ServerRecords) -> None:
    row, secret = records.keys.create("ci", KeyLimits(sandboxes=3, memory_mib=1024))
    assert secret.startswith("rmt_")
    assert row.id.startswith("key_")
    found = records.keys.find(secret)
    assert found == row
    assert found is not None
    assert found.limits == KeyLimits(sandboxes=3, memory_mib=1024, concurrent_cells=1000, templates=8)
    for wrong in ("", "rmt_", secret[:-1], secret + "x", secret.swapcase(), "\udcff", "é"):
        assert records.keys.find(wrong) is None


def test_the_secret_is_nowhere_in_the_files(records: ServerRecords, path: Path) -> None:
    _, secret = records.keys.create("ci")
    for file in path.parent.iterdir():
        assert secret.removeprefix("rmt_").encode() not in file.read_bytes()


def test_a_key_revoked_by_another_process_ends_at_once(records: ServerRecords, path: Path) -> None:
    row, secret = records.keys.create("ci")
    assert records.keys.find(secret) == row
    other = ServerRecords(path)
    revoked = other.keys.revoke("ci")
    assert revoked is not None
    assert revoked.revoked_ms is not None
    assert records.keys.find(secret) is None
    _, second = other.keys.create("ci")
    other.close()
    assert records.keys.find(second) is not None


def test_a_key_is_revoked_by_name_or_id_and_only_once(records: ServerRecords) -> None:
    first, _ = records.keys.create("one")
    second, _ = records.keys.create("two")
    assert records.keys.revoke("one") is not None
    assert records.keys.revoke(second.id) is not None
    assert records.keys.revoke(second.id) is None
    assert records.keys.revoke("nobody") is None
    assert records.keys.rows() == []
    assert [row.id for row in records.keys.rows(revoked=True)] == [first.id, second.id]


def test_a_revoked_key_keeps_its_name_in_metrics(records: ServerRecords) -> None:
    row, _ = records.keys.create("ci")
    records.keys.revoke(row.id)
    assert records.keys.name_of(row.id) == "ci"
    assert records.keys.name_of("local") == "local"


@pytest.mark.parametrize("name", ["", "a b", "a\n", "é", "x" * 65, "local", '"', 7])
def test_a_name_is_one_short_word(records: ServerRecords, name: str) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        records.keys.create(name)


def test_two_keys_in_use_do_not_have_one_name(records: ServerRecords) -> None:
    records.keys.create("ci")
    with pytest.raises(InvalidArgument, match="already"):
        records.keys.create("ci")


def test_a_key_reaches_nothing_unless_it_is_said(records: ServerRecords, path: Path) -> None:
    plain, _ = records.keys.create("plain")
    some, key = records.keys.create("some", network=read_bound(["api.example", "*.example:443"]))
    wide, _ = records.keys.create("wide", network=read_bound(["open", "10.0.0.5:5432"]))
    assert plain.network == NetworkSpec()
    other = ServerRecords(path)
    assert [rule_texts(row.network) for row in other.keys.rows()] == [
        [],
        ["api.example", "*.example:443"],
        ["open", "10.0.0.5:5432"],
    ]
    assert other.keys.find(key) == some
    revoked = other.keys.revoke("wide")
    assert revoked is not None
    assert revoked.network == wide.network
    other.close()


def test_keys_made_before_there_was_a_network_reach_nothing(path: Path) -> None:
    database = sqlite3.connect(path)
    with database:
        for statement in schema.MIGRATIONS[0].split(";"):
            database.execute(statement)
        database.execute("PRAGMA user_version = 1")
        limits = json.dumps(KeyLimits().header())
        database.execute(
            "INSERT INTO keys (id, name, digest, scope, limits, created_ms) VALUES (?, ?, ?, ?, ?, ?)",
            ("key_1", "old", digest("rmt_old"), "sandboxes", limits, 1),
        )
    database.close()
    records = ServerRecords(path)
    found = records.keys.find("rmt_old")
    records.close()
    assert found is not None
    assert (found.name, found.network) == ("old", NetworkSpec())


def test_a_scope_is_one_of_three(records: ServerRecords) -> None:
    row, _ = records.keys.create("scrape", scope="metrics")
    admin, _ = records.keys.create("admin", scope="operator")
    assert (row.scope, admin.scope) == ("metrics", "operator")
    assert (row.operates, admin.operates) == (False, True)
    with pytest.raises(InvalidArgument, match="scope"):
        records.keys.create("other", scope="everything")  # type: ignore[arg-type]
