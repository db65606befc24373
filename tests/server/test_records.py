"""The records survive what happens to servers, keep no secret, and do not grow without end."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramet.doors.http import records as records_module
from ramet.doors.http.access.keys import KeyLimits
from ramet.doors.http.records import ServerRecords, StoredAnswer
from ramet.errors import InvalidArgument, RametError


@dataclass(frozen=True)
class Row:
    id: str
    owner: str = "key_a"
    parent: str | None = None
    template: str = "default"
    created_ms: int = 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ramet.db"


@pytest.fixture
def records(path: Path) -> Iterator[ServerRecords]:
    opened = ServerRecords(path)
    yield opened
    opened.close()


def test_a_sandbox_that_ended_is_told_with_its_cause_to_its_owner_only(records: ServerRecords) -> None:
    records.begun(Row("sbx_1"))
    assert records.ended_cause("key_a", "sbx_1") is None
    records.ended("sbx_1", "idle", "it was not used for 300 seconds")
    ended = records.ended_cause("key_a", "sbx_1")
    assert ended is not None
    assert (ended.cause, ended.message) == ("idle", "it was not used for 300 seconds")
    assert records.ended_cause("key_b", "sbx_1") is None
    assert records.ended_cause("key_a", "sbx_2") is None


def test_the_first_cause_stays(records: ServerRecords) -> None:
    records.begun(Row("sbx_1"))
    records.ended("sbx_1", "idle", "first")
    records.ended("sbx_1", "closed", "second")
    ended = records.ended_cause("key_a", "sbx_1")
    assert ended is not None
    assert ended.cause == "idle"


def test_reconcile_ends_what_the_engine_does_not_have_and_adds_what_it_has(records: ServerRecords) -> None:
    records.begun(Row("sbx_gone"))
    records.begun(Row("sbx_here"))
    records.begun(Row("sbx_back"))
    records.ended("sbx_back", "lost", "")
    records.begun(Row("sbx_closed"))
    records.ended("sbx_closed", "closed", "by its owner")
    records.reconcile([Row("sbx_here"), Row("sbx_new"), Row("sbx_back")])
    gone = records.ended_cause("key_a", "sbx_gone")
    assert gone is not None
    assert gone.cause == "lost"
    assert [records.ended_cause("key_a", some) for some in ("sbx_here", "sbx_new", "sbx_back")] == [None, None, None]
    closed = records.ended_cause("key_a", "sbx_closed")
    assert closed is not None
    assert closed.cause == "closed"
    records.ended("sbx_new", "timeout", "over")
    assert records.ended_cause("key_a", "sbx_new") is not None


def test_the_files_are_readable_by_their_owner_only(records: ServerRecords, path: Path) -> None:
    records.begun(Row("sbx_1"))
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {0o600}


def test_a_file_that_others_could_read_is_made_private(path: Path) -> None:
    ServerRecords(path).close()
    path.chmod(0o644)
    ServerRecords(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_recorded_is_there_after_reopening(path: Path) -> None:
    first = ServerRecords(path)
    row, secret = first.keys.create("ci")
    first.record("key_a", "k", b"f", StoredAnswer(201, "application/json", b"{}"))
    first.close()
    second = ServerRecords(path)
    assert second.keys.find(secret) == row
    recorded = second.recall("key_a", "k")
    assert recorded is not None
    assert recorded.answer == StoredAnswer(201, "application/json", b"{}")
    second.close()


_WRITER = """
import sys
from dataclasses import dataclass
from ramet.doors.http.records import ServerRecords, StoredAnswer

@dataclass
class Row:
    id: str
    owner: str = "key_a"
    parent: str | None = None
    template: str = "default"
    created_ms: int = 1

records = ServerRecords(sys.argv[1])
number = 0
while True:
    records.begun(Row(f"sbx_{number}"))
    records.record("key_a", str(number), b"f", StoredAnswer(201, "application/json", b"{}"))
    print(number, flush=True)
    number += 1
"""


@pytest.mark.deep("restarts")
def test_a_server_killed_while_writing_loses_nothing_it_had_written(path: Path) -> None:
    for _ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert writer.stdout is not None
        for _ in range(200):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        written = writer.stdout.read().splitlines()
        writer.wait()
        writer.stdout.close()
        last = int(written[-1]) if written else 199
        with sqlite3.connect(path) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()
        reopened = ServerRecords(path)
        assert reopened.recall("key_a", str(last)) is not None
        reopened.reconcile([])
        assert reopened.ended_cause("key_a", f"sbx_{last}") is not None
        reopened.close()
        path.unlink()


def test_two_processes_may_open_a_new_file_at_once(path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from ramet.doors.http.records import ServerRecords; ServerRecords(sys.argv[1])",
        str(path),
    ]
    openers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    assert [opener.communicate()[1] for opener in openers] == [b""] * 4


def test_a_file_of_a_newer_version_is_refused_and_left_alone(path: Path) -> None:
    ServerRecords(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(RametError, match="version 99"):
        ServerRecords(path)


def test_a_file_that_is_no_database_is_refused_with_a_way_out(path: Path) -> None:
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(RametError) as caught:
        ServerRecords(path)
    assert "move the file away" in (caught.value.hint or "")


def test_what_cannot_be_written_is_complained_about_and_does_not_raise(path: Path) -> None:
    complaints: list[str] = []
    records = ServerRecords(path, complaints.append)
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE sandboxes")
    other.close()
    records.begun(Row("sbx_1"))
    assert len(complaints) == 1
    records.close()


def test_old_rows_are_pruned(records: ServerRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = records_module._now_ms()
    monkeypatch.setattr(records_module, "_now_ms", lambda: now_ms - 31 * 24 * 3600 * 1000)
    records.begun(Row("sbx_old"))
    records.ended("sbx_old", "closed", "")
    records.begun(Row("sbx_live"))
    records.record("key_a", "old", b"f", StoredAnswer(201, "application/json", b"{}"))
    monkeypatch.setattr(records_module, "_now_ms", lambda: now_ms)
    assert records.recall("key_a", "old") is None  # also before it was pruned
    records.prune()
    assert records.ended_cause("key_a", "sbx_old") is None
    records.ended("sbx_live", "closed", "")
    assert records.ended_cause("key_a", "sbx_live") is not None


def test_no_table_grows_beyond_its_bound(records: ServerRecords, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "_ANSWERS_AT_MOST", 50)
    monkeypatch.setattr(records_module, "_ENDED_AT_MOST", 50)
    monkeypatch.setattr(records_module, "_PRUNE_EVERY_WRITES", 10)
    for number in range(300):
        records.record("key_a", str(number), b"f", StoredAnswer(201, "application/json", b"{}"))
        records.begun(Row(f"sbx_{number}"))
        records.ended(f"sbx_{number}", "closed", "")
    with sqlite3.connect(path) as database:
        counts = [
            database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("idempotency", "sandboxes")
        ]
    database.close()
    assert all(50 <= count <= 60 for count in counts)
    assert records.recall("key_a", "299") is not None


def test_a_limit_must_be_a_whole_number(records: ServerRecords) -> None:
    with pytest.raises(InvalidArgument, match="sandboxes"):
        records.keys.create("ci", KeyLimits(sandboxes=-1))
