"""What a host can do: told beforehand by `ramet doctor`, and by an error where it is too little."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

_TRY = """
from ramet import HostNotCapable, Sandbox
try:
    Sandbox()
except HostNotCapable as error:
    print(error)
"""


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _where_namespaces_are_forbidden(*command: str) -> subprocess.CompletedProcess[str]:
    """In a user namespace of its own that allows no further one: as on a host that forbids them."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("util-linux's unshare is missing")
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    return _run(unshare, "--user", "--map-root-user", "bash", "-c", forbid, "bash", *command)


@pytest.mark.deep("restarts")
def test_doctor_says_what_the_host_can_do_and_what_a_sandbox_really_has() -> None:
    done = _run(sys.executable, "-m", "ramet.cli.main", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("  no ")] == []
    assert any(line.split()[:2] == ["ok", "user-namespace"] for line in lines)
    really = done.stdout.partition("A sandbox here really has:")[2]
    assert "capabilities               none" in really
    assert "loopback only" in really


def test_doctor_names_what_is_missing_and_how_to_mend_it() -> None:
    done = _where_namespaces_are_forbidden(sys.executable, "-m", "ramet.cli.main", "doctor")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no  user-namespace" in done.stdout
    assert "fix: run: sudo sysctl -w user.max_user_namespaces=65536" in done.stdout
    assert "Sandboxes cannot be made here." in done.stdout


@pytest.mark.promise("wall-no-weakening")
def test_where_user_namespaces_are_forbidden_no_sandbox_is_made_and_the_error_says_why() -> None:
    done = _where_namespaces_are_forbidden(sys.executable, "-c", _TRY)
    assert done.stdout.startswith("this host cannot run sandboxes: "), done
    assert "unshare(CLONE_NEWUSER)" in done.stdout
    assert "run: sudo sysctl -w user.max_user_namespaces=65536" in done.stdout
