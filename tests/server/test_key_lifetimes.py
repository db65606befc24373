"""Keys expire, are rotated, are changed, and say when they were last used; keys of older servers go on as they were."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.doors.http import schema
from ramet.doors.http.access import auth as gate_module
from ramet.doors.http.access import key_records
from ramet.doors.http.access.auth import Authenticator
from ramet.doors.http.access.key_records import KeyChange, read_keys
from ramet.doors.http.access.keys import KeyLimits, digest
from ramet.doors.http.access.network_bounds import read_bound
from ramet.doors.http.records import ServerRecords
from ramet.doors.http.settings import ServerSettings
from ramet.errors import InvalidArgument, Unauthorized
from ramet.web.sqlite_store import now_ms

_HOUR_MS = 3600 * 1000


class Clock:
    """The time of day as the records see it."""

    def __init__(self) -> None:
        self.now_ms = now_ms()

    def pass_hours(self, hours: float) -> None:
        self.now_ms += int(hours * _HOUR_MS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (key_records, gate_module):
        monkeypatch.setattr(module, "now_ms", lambda: clock.now_ms)
    return clock


@pytest.fixture
def records(tmp_path: Path) -> Iterator[ServerRecords]:
    opened = ServerRecords(tmp_path / "ramet.db")
    yield opened
    opened.close()


def identify(records: ServerRecords, secret: str) -> str:
    door = Authenticator(ServerSettings(state=""), records)
    return door.identify({b"authorization": f"Bearer {secret}".encode(), b"host": b"127.0.0.1"})[0]


def test_an_expired_key_is_refused_with_the_day_and_the_cure(records: ServerRecords, clock: Clock) -> None:
    row, secret = records.keys.create("ci", expires_ms=clock.now_ms + _HOUR_MS)
    assert identify(records, secret) == row.id
    clock.pass_hours(1)
    with pytest.raises(Unauthorized, match=r"this api key expired on \d{4}-\d\d-\d\d") as refused:
        identify(records, secret)
    assert "ramet keys set ci --expires" in (refused.value.hint or "")
    assert [key.name for key in records.keys.rows()] == ["ci"]  # so that it can be given more time
    records.keys.change("ci", KeyChange(expires_ms=clock.now_ms + _HOUR_MS))
    assert identify(records, secret) == row.id
    records.keys.change("ci", KeyChange(never_expires=True))
    clock.pass_hours(10_000)
    assert identify(records, secret) == row.id


def test_a_key_cannot_expire_in_the_past(records: ServerRecords, clock: Clock) -> None:
    with pytest.raises(InvalidArgument, match="in the future"):
        records.keys.create("ci", expires_ms=clock.now_ms)
    records.keys.create("ci")
    with pytest.raises(InvalidArgument, match="in the future"):
        records.keys.change("ci", KeyChange(expires_ms=1))


def test_a_rotated_key_has_a_new_secret_and_the_old_one_for_a_while(records: ServerRecords, clock: Clock) -> None:
    row, first = records.keys.create("ci")
    rotated = records.keys.rotate("ci", 24 * 3600, KeyChange())
    assert rotated is not None
    same, second = rotated
    assert same.id == row.id  # what it has made stays its own
    assert [identify(records, secret) for secret in (first, second)] == [row.id, row.id]
    clock.pass_hours(24)
    assert identify(records, second) == row.id
    with pytest.raises(Unauthorized, match="^invalid api key"):
        identify(records, first)


def test_a_second_rotation_does_not_end_the_first_secret_early_unless_it_is_asked_to(
    records: ServerRecords, clock: Clock
) -> None:
    row, first = records.keys.create("ci")
    assert records.keys.rotate("ci", 3600, KeyChange()) is not None
    assert records.keys.rotate("ci", 24 * 3600, KeyChange()) is not None
    assert identify(records, first) == row.id
    last = records.keys.rotate("ci", 0, KeyChange())
    assert last is not None
    with pytest.raises(Unauthorized):
        identify(records, first)
    assert identify(records, last[1]) == row.id
    clock.pass_hours(48)
    records.prune()
    assert identify(records, last[1]) == row.id


def test_an_old_secret_of_a_revoked_key_opens_nothing(records: ServerRecords) -> None:
    _, first = records.keys.create("ci")
    records.keys.rotate("ci", 3600, KeyChange())
    records.keys.revoke("ci")
    with pytest.raises(Unauthorized):
        identify(records, first)


def test_an_expired_key_is_rotated_only_with_a_new_end(records: ServerRecords, clock: Clock) -> None:
    records.keys.create("ci", expires_ms=clock.now_ms + _HOUR_MS)
    clock.pass_hours(2)
    with pytest.raises(InvalidArgument, match="has expired"):
        records.keys.rotate("ci", 3600, KeyChange())
    rotated = records.keys.rotate("ci", 3600, KeyChange(expires_ms=clock.now_ms + _HOUR_MS))
    assert rotated is not None
    assert identify(records, rotated[1]) == rotated[0].id


def test_only_what_is_given_is_changed_and_a_server_sees_it_at_once(records: ServerRecords, tmp_path: Path) -> None:
    _, secret = records.keys.create("ci", KeyLimits(sandboxes=3, memory_mib=512), network=read_bound(["a.example"]))
    assert records.keys.find(secret) is not None
    other = ServerRecords(tmp_path / "ramet.db")
    other.keys.change("ci", KeyChange(limits={"sandboxes": 5}))
    other.keys.change("ci", KeyChange(limits={"memory_mib": None}))
    assert other.keys.change("nobody", KeyChange()) is None
    other.close()
    found = records.keys.find(secret)
    assert found is not None
    assert found.limits == KeyLimits(sandboxes=5, memory_mib=None)
    assert found.network == read_bound(["a.example"])


def test_two_who_change_a_key_at_once_do_not_undo_each_other(tmp_path: Path) -> None:
    path = tmp_path / "ramet.db"
    records = ServerRecords(path)
    records.keys.create("ci", KeyLimits())
    records.close()

    def change(name: str) -> None:
        mine = ServerRecords(path)
        for number in range(20):
            mine.keys.change("ci", KeyChange(limits={name: number}))
        mine.close()

    threads = [threading.Thread(target=change, args=(name,)) for name in ("sandboxes", "memory_mib", "templates")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (row,) = read_keys(path)
    assert (row.limits.sandboxes, row.limits.memory_mib, row.limits.templates) == (19, 19, 19)


def test_the_last_use_is_known_and_not_written_at_each_request(records: ServerRecords, tmp_path: Path) -> None:
    _, secret = records.keys.create("ci")
    assert records.keys.rows()[0].last_used_ms is None
    statements: list[str] = []
    records._database._connection.set_trace_callback(statements.append)
    for _ in range(50):
        identify(records, secret)
    records._database._connection.set_trace_callback(None)
    assert sum("UPDATE" in statement for statement in statements) == 1
    (row,) = read_keys(tmp_path / "ramet.db")
    assert row.last_used_ms is not None
    assert row.last_used_ms >= row.created_ms


def test_a_wrong_key_is_no_use(records: ServerRecords) -> None:
    records.keys.create("ci")
    with pytest.raises(Unauthorized):
        identify(records, "rmt_wrong")
    assert records.keys.rows()[0].last_used_ms is None


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS)))
def test_keys_of_every_older_version_go_on(tmp_path: Path, version: int) -> None:
    path = tmp_path / "ramet.db"
    older = sqlite3.connect(path)
    with older:
        for script in schema.MIGRATIONS[:version]:
            for statement in script.split(";"):
                older.execute(statement)
        older.execute(f"PRAGMA user_version = {version}")
        limits = json.dumps(KeyLimits(sandboxes=7).header())
        older.execute(
            "INSERT INTO keys (id, name, digest, scope, limits, created_ms) VALUES (?, ?, ?, ?, ?, ?)",
            ("key_1", "old", digest("rmt_old"), "sandboxes", limits, 1),
        )
    older.close()
    (listed,) = read_keys(path)  # `ramet keys list` may be the first to meet it
    assert (listed.name, listed.expires_ms, listed.last_used_ms) == ("old", None, None)
    records = ServerRecords(path)
    assert identify(records, "rmt_old") == "key_1"
    rotated = records.keys.rotate("old", 60, KeyChange())
    assert rotated is not None
    assert rotated[0].limits == KeyLimits(sandboxes=7)
    assert identify(records, "rmt_old") == identify(records, rotated[1]) == "key_1"
    records.close()
