"""The reference of HTTP is true: its examples run, and its numbers are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from ramet.doors.http.access.keys import KeyLimits
from ramet.doors.http.routes.metrics import ServerMetrics
from ramet.doors.http.settings import ServerSettings
from ramet.protocol import checks
from ramet.protocol.values import terminals
from tests.server.running import Server

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "http.md").read_text()
MIB = 1024 * 1024


def test_the_examples_run(shared_server: Server) -> None:
    """All shell blocks of the page, in order, are one script."""
    script = "set -eu -o pipefail\n" + "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
    environment = {**os.environ, "RAMET_URL": shared_server.url, "NO_PROXY": "127.0.0.1"}
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    for expected in (
        '"data":"42"',
        '"value":"43"',
        "a,b",
        '"children"',
        "pty_exit",
        'ramet_sandboxes{key="local"',
        "from the sandbox",
    ):
        assert expected in ended.stdout


def test_the_limits_are_those_of_the_code() -> None:
    settings, limits = ServerSettings(""), KeyLimits()
    for said in (
        f"| body of a request | {settings.body_bytes // MIB} MiB; `exec` {settings.code_body_bytes // MIB} MiB; "
        f"code in frames, as the SDK sends it, {checks.CODE_BYTES_AT_MOST // MIB} MiB;",
        f"of a key at once | {settings.held_bytes_of_an_owner // MIB} MiB;",
        f"| requests of a key at once | {settings.requests_of_an_owner} |",
        f"| {settings.local_sandboxes} sandboxes, {settings.local_cells} cells running or waiting, "
        f"{settings.local_templates} templates |",
        f"| {settings.head_bytes // 1024} KiB, {settings.headers} headers, within {settings.head_seconds:.0f} s |",
        f"given up after {settings.body_seconds:.0f} s",
        f"given up after {settings.unread_seconds:.0f} s",
        f"| `n` of a fork | {checks.CHILDREN_AT_MOST} |",
        f"| terminals of a sandbox | {terminals.TERMINALS_AT_MOST} that run |",
        f"| {settings.exposed_ports}, with {settings.exposed_requests} requests at once each |",
        f"no answer began within {settings.exposed_seconds:.0f} s",
        f"| {limits.sandboxes} sandboxes, {limits.concurrent_cells} cells running or waiting, {limits.templates} ",
        f"A sandbox ends {settings.timeout_seconds / 60:.0f} minutes after it was made",
        f"and {settings.idle_timeout_seconds / 60:.0f} minutes after it was last used",
    ):
        assert said in PAGE


def test_every_metric_is_in_the_reference() -> None:
    stats: dict[str, object] = {"pool": {}, "owners": {"a": {"states": {}}}, "snapshots": 0, "spaces": 0}
    names = re.findall(r"^# TYPE (\w+)", ServerMetrics().exposition(stats).decode(), re.MULTILINE)
    assert len(names) > 15
    assert [name for name in names if f"`{name}`" not in PAGE] == []
