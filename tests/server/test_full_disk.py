"""A disk without room: what is said of it is right, and nobody is told to throw their keys away."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.doors.http.access.key_records import read_keys
from ramet.doors.http.access.keys import KeyRow
from ramet.doors.http.records import ServerRecords
from ramet.errors import RametError
from tests.server.running import Server
from tests.server.talking import Client

_KIB = 1024


def on_a_small_disk(state: Path, script: str) -> str:
    """What a shell script says whose $STATE is a file system of 512 KiB, with a key "first" on it and no room left."""
    ramet = f"{sys.executable} -m ramet.cli.main"
    prepared = f"""
        mount -t tmpfs -o size=512k,mode=700 small {state}
        {ramet} keys create --name first --state {state} > /dev/null 2>&1 || exit 9
        dd if=/dev/zero of={state}/filler bs=1k 2> /dev/null
        ramet() {{ {ramet} "$@" --state {state} 2>&1; echo "exit $?"; }}
    """
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "/bin/bash", "-c", prepared + script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 9, done
    return done.stdout + done.stderr


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


def test_keys_are_listed_on_a_full_disk(state: Path) -> None:
    said = on_a_small_disk(state, "ramet keys list")
    assert "first" in said
    assert "exit 0" in said


@pytest.mark.deep("restarts")
def test_a_key_that_cannot_be_written_is_told_so_and_nobody_is_told_to_move_the_records_away(state: Path) -> None:
    said = on_a_small_disk(state, "for n in 1 2 3 4 5 6 7 8; do ramet keys create --name more$n; done; ramet keys list")
    assert "Traceback" not in said
    assert "move the file away" not in said
    assert "room on that disk" in said
    assert "first" in said.rpartition("exit 1")[2]  # it is still listed


def test_a_server_that_cannot_begin_on_a_full_disk_says_why_in_a_line(state: Path) -> None:
    said = on_a_small_disk(state, "ramet serve --port 0")
    assert "Traceback" not in said
    assert "exit 1" in said
    assert re.search(r"cannot (write|open) .*(No space left on device|full|disk I/O error)", said)


@pytest.fixture
def records(tmp_path: Path) -> Iterator[ServerRecords]:
    one = ServerRecords(tmp_path / "ramet.db")
    yield one
    one.close()


def _fill(records: ServerRecords) -> None:
    """No page more for this connection, as on a full disk."""
    (pages,) = records._database.execute("PRAGMA page_count").fetchone()
    records._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        records._database.execute("CREATE TABLE filler AS SELECT zeroblob(100000)")


def test_what_cannot_be_recorded_is_complained_about_once_and_not_for_each_write(tmp_path: Path) -> None:
    complaints: list[str] = []
    records = ServerRecords(tmp_path / "ramet.db", complaints.append)
    records.close()
    for number in range(300):
        records.ended(f"sbx_{number}", "closed", "it was closed")
    assert len(complaints) == 1


def test_a_port_that_cannot_be_recorded_is_refused_with_the_reason_and_without_paths(
    records: ServerRecords, tmp_path: Path
) -> None:
    _fill(records)

    def expose_many() -> None:
        for port in range(1, 2000):
            records.expose("", "sbx_1", port, at_most=5000)

    with pytest.raises(RametError, match="cannot write the records of the server: database or disk is full") as refused:
        expose_many()
    assert refused.value.details["status"] == 507
    assert str(tmp_path) not in str(refused.value)
    assert "make room" in (refused.value.hint or "")
    assert records.exposures("", "sbx_1")  # it goes on with what there is


def test_keys_are_read_without_writing(tmp_path: Path) -> None:
    path = tmp_path / "ramet.db"
    records = ServerRecords(path)
    records.keys.create("first")
    beside: list[KeyRow] = read_keys(path)
    records.close()
    assert [key.name for key in beside] == ["first"]
    before = sorted((file.name, file.stat().st_mtime_ns) for file in tmp_path.iterdir())
    assert [key.name for key in read_keys(path)] == ["first"]
    after = sorted((file.name, file.stat().st_mtime_ns) for file in tmp_path.iterdir() if "-" not in file.name)
    assert after == before


def test_only_records_that_are_broken_are_to_be_moved_away(tmp_path: Path) -> None:
    broken = tmp_path / "ramet.db"
    broken.write_bytes(b"this is no database at all, though it is long enough to be one" * 100)
    for open_it in (ServerRecords, read_keys):
        with pytest.raises(RametError) as refused:
            open_it(broken)
        assert "move the file away" in (refused.value.hint or "")


@pytest.mark.deep("restarts")
def test_a_server_says_why_it_cannot_record_an_exposure(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()
    try:
        client = Client(server.port)
        sandbox_id = client.create()
        # As on a full disk nothing can be written: another holds the lock for longer than the server waits.
        with sqlite3.connect(server.state / "ramet.db", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            answer = client.ask("POST", f"/v1/sandboxes/{sandbox_id}/ports", {"port": 8000})
            other.execute("ROLLBACK")
        assert answer.status == 503
        assert "cannot write the records" in answer.json["error"]
        client.remove(sandbox_id)
        client.close()
    finally:
        server.stop()
