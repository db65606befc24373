"""The audit log on disk is bounded, has whole lines only, and loses nothing that could be written."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ramet.doors.http.access import audit_file
from ramet.doors.http.access.admission import ALLOWED
from ramet.doors.http.access.audit_file import AUDIT_NAME, AuditFile, AuditWriter, note_key_change
from ramet.doors.http.access.audit_log import CALL_ACTIONS, ROUTE_ACTIONS
from ramet.doors.http.routes.table import ROUTES
from ramet.protocol import calls
from tests.server.talking import wait_until

_LINE = b'{"action":"run"}\n'


def lines_of(folder: Path) -> list[dict[str, object]]:
    """Oldest first, of all files."""
    files = [folder / f"{AUDIT_NAME}.{number}" for number in (3, 2, 1)] + [folder / AUDIT_NAME]
    return [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]


def test_the_log_is_private_and_bounded_and_old_files_go(tmp_path: Path) -> None:
    log = AuditFile(tmp_path, 4000)
    for number in range(1000):
        log.append(b'{"number":%d}\n' % number)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [AUDIT_NAME, *(f"{AUDIT_NAME}.{n}" for n in (1, 2, 3))]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert sum(file.stat().st_size for file in files) <= 4000
    numbers = [line["number"] for line in lines_of(tmp_path)]
    assert numbers == list(range(1000 - len(numbers), 1000))


def test_a_line_that_a_power_cut_has_cut_off_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / AUDIT_NAME).write_bytes(b'{"action":"ru')
    AuditFile(tmp_path, 1 << 20).append(_LINE)
    assert (tmp_path / AUDIT_NAME).read_bytes() == b'{"action":"ru\n' + _LINE


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / AUDIT_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        AuditFile(tmp_path, 1 << 20).append(_LINE)


def test_on_a_full_disk_no_half_line_stays(tmp_path: Path) -> None:
    """A file system of 64 KiB, of which one page is left."""
    script = f"""
        mount -t tmpfs -o size=64k small {tmp_path} || exit 9
        {sys.executable} - <<'END'
from pathlib import Path
from ramet.doors.http.access.audit_file import AuditFile
log = AuditFile(Path({str(tmp_path)!r}), 1 << 20)
written = 0
try:
    while True:
        log.append(b'{{"action":"run","filler":"' + b"x" * 3000 + b'"}}\\n')
        written += 1
except OSError as error:
    print(written, error.errno)
text = (Path({str(tmp_path)!r}) / "audit.jsonl").read_bytes()
print(text.count(b"\\n"), text.endswith(b"\\n"))
END
    """
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "/bin/bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    first, second = done.stdout.splitlines()
    written, number = map(int, first.split())
    assert number == errno.ENOSPC
    assert written > 5
    assert second == f"{written} True"


def test_many_who_write_at_once_write_whole_lines(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for number in range(50):
            note_key_change(tmp_path, 20_000, "key set", {"key": name, "number": number})

    threads = [threading.Thread(target=write, args=(f"k{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = lines_of(tmp_path)
    assert 0 < len(lines) <= 400
    assert {line["action"] for line in lines} == {"key set"}
    assert {line["uid"] for line in lines} == {os.getuid()}


def test_what_is_in_the_pipe_is_written_before_the_end(tmp_path: Path) -> None:
    writer = AuditWriter(AuditFile(tmp_path, 1 << 20), lambda _: None)
    for _ in range(2000):
        os.write(writer.descriptor, _LINE)
    writer.close()
    assert len(lines_of(tmp_path)) == 2000


def test_a_log_that_cannot_be_written_is_complained_about_once_and_says_what_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "_GATHER_SECONDS", 0.001)
    complaints: list[str] = []
    folder = tmp_path / "not yet there"
    writer = AuditWriter(AuditFile(folder, 1 << 20), complaints.append)
    for number in range(5):
        os.write(writer.descriptor, _LINE)
        wait_until(lambda count=number + 1: writer._lost == count, "the line is lost")  # type: ignore[misc]
    assert len(complaints) == 1
    assert "No such file or directory" in complaints[0]
    folder.mkdir()
    os.write(writer.descriptor, _LINE)
    writer.close()
    first, second = lines_of(folder)
    assert (first["action"], first["count"]) == ("lines lost", 5)
    assert second["action"] == "run"


# Reading, and what is about the server itself. Whatever is neither here nor in the log is forgotten.
_ONLY_LOOKING = {
    ("GET", "/"), ("GET", "/docs"), ("GET", "/metrics"),
    *(("GET", f"/v1/{path}") for path in ("healthz", "livez", "readyz", "openapi.json", "whoami", "snapshots")),
    ("GET", "/v1/sandboxes"),
    *(
        ("GET", f"/v1/sandboxes/{{sandbox_id}}{path}")
        for path in (
            "", "/metrics", "/replay", "/history", "/executions/{execution_id}", "/files/list", "/files/stat",
            "/diff/{other_id}", "/network", "/ports", "/pty",
        )
    ),
    ("HEAD", "/v1/sandboxes/{sandbox_id}/files"),
    # Of a terminal that is open, which is in the log.
    *(("POST", f"/v1/sandboxes/{{sandbox_id}}/pty/{{terminal_id}}/{path}") for path in ("input", "resize", "read")),
    ("POST", "/v1/call"),  # by the kind of its frame
}  # fmt: skip


def test_every_route_is_audited_or_known_to_be_harmless() -> None:
    routes = {(method, path) for method, path, _ in ROUTES}
    assert routes == ROUTE_ACTIONS.keys() | _ONLY_LOOKING
    assert not ROUTE_ACTIONS.keys() & _ONLY_LOOKING


_FRAMES_ONLY_LOOKING = {
    calls.INFO, calls.FACTS, calls.SANDBOXES, calls.KEPT, calls.LIST, calls.STAT, calls.DIFF, calls.REPLAY, calls.FETCH,
    calls.NETWORK, calls.HISTORY,
    # Of a terminal that is open, and of cells, which are in the log.
    *(calls.TERMINAL_CALLS - {calls.TERMINAL_OPEN, calls.TERMINAL_ATTACH, calls.TERMINAL_KILL}),
    calls.SET_TOOLS, calls.TOOL_ANSWER,
}  # fmt: skip


def test_frames_are_audited_in_the_words_of_the_routes_or_known_to_be_harmless() -> None:
    assert set(CALL_ACTIONS) | _FRAMES_ONLY_LOOKING == ALLOWED
    assert not set(CALL_ACTIONS) & _FRAMES_ONLY_LOOKING
    assert set(CALL_ACTIONS.values()) == set(ROUTE_ACTIONS.values())


def test_a_worker_that_never_ends_a_line_fills_no_memory_of_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "_GATHER_SECONDS", 0.001)
    writer = AuditWriter(AuditFile(tmp_path, 1 << 20), lambda _: None)
    for _ in range(100):
        os.write(writer.descriptor, b"x" * 64 * 1024)
        assert len(writer._rest) <= 2 << 20
    os.write(writer.descriptor, b"\n" + _LINE)
    writer.close()
    last = (tmp_path / AUDIT_NAME).read_bytes().splitlines()[-1]
    assert json.loads(last)["action"] == "run"
