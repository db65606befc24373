"""What docs/operating.md has people install and type is what works."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.doors.http.access.audit_log import CALL_ACTIONS, INSPECT, LIST_ALL, ROUTE_ACTIONS
from ramet.doors.http.access.key_records import read_keys
from ramet.doors.http.settings import ServerSettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text()
UNIT = ROOT / "examples" / "ramet.service"

# Each takes away something that sandboxes need.
_LEFT_OFF = {
    "RestrictNamespaces", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProcSubset",
    "ProtectControlGroups", "SystemCallFilter", "MemoryDenyWriteExecute",
}  # fmt: skip


def test_the_unit_is_whole_and_takes_nothing_away_that_sandboxes_need() -> None:
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read_string(UNIT.read_text())
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = dict(unit["Service"])
    assert not _LEFT_OFF & service.keys()
    for name in _LEFT_OFF:
        assert f"`{name}`" in PAGE
    assert (service["User"], service["Type"], service["Delegate"], service["KillMode"]) == (
        "ramet",
        "notify",
        "yes",
        "process",
    )
    assert int(service["TimeoutStopSec"]) > ServerSettings("").grace_seconds
    # systemd tries again for longer than an engine of a killed server takes to end.
    tries, seconds = int(unit["Unit"]["StartLimitBurst"]), int(service["RestartSec"].removesuffix("s"))
    assert tries * seconds >= 30
    assert int(unit["Unit"]["StartLimitIntervalSec"]) > tries * seconds
    assert "--require-key" in service["ExecStart"]
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_the_command_of_the_unit_is_one_that_ramet_knows() -> None:
    (command,) = re.findall(r"^ExecStart=\S+/ramet (.*)$", UNIT.read_text(), re.MULTILINE)
    script = f"from ramet.cli.main import make_parser; print(make_parser().parse_args({command.split()!r}).max_memory)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) > 0


def test_systemd_has_no_complaint_about_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    there = tmp_path / "ramet.service"
    program = tmp_path / "ramet"
    program.symlink_to("/bin/true")
    there.write_text(UNIT.read_text().replace("/opt/ramet/bin/ramet", str(program)).replace("=ramet\n", "=root\n"))
    done = subprocess.run(["systemd-analyze", "verify", there], capture_output=True, text=True, check=False, timeout=60)
    about = [line for line in done.stderr.splitlines() if there.name in line]
    # Known to systemd 254 and newer, as the page says.
    assert [line for line in about if "DelegateSubgroup" not in line] == []


def test_the_backup_that_is_told_has_the_keys(tmp_path: Path) -> None:
    state = tmp_path / "state"
    environment = {**os.environ, "RAMET_STATE": str(state)}
    command = [sys.executable, "-m", "ramet.cli.main", "keys", "create", "--name", "ci"]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    (script,) = [
        block for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "backup" in block
    ]
    script = script.replace("python3", sys.executable)
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=environment, check=True, timeout=60)
    assert [key.name for key in read_keys(tmp_path / "backup" / "ramet.db")] == ["ci"]
    for name in ("ramet.secret", "audit.jsonl"):
        assert (tmp_path / "backup" / name).read_bytes() == (state / name).read_bytes()
    assert {file.stat().st_mode & 0o077 for file in (tmp_path / "backup").iterdir()} == {0}


def test_every_action_of_the_audit_log_is_told() -> None:
    actions = {*ROUTE_ACTIONS.values(), *CALL_ACTIONS.values(), INSPECT, LIST_ALL, "end"}
    assert [action for action in actions if f"`{action}`" not in PAGE] == []
    assert f"at most {ServerSettings('').audit_bytes >> 20} MiB" in PAGE
