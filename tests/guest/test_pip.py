from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet_guest.packaging import pip_magic
from tests.guest.guest_driver import Guest

LOOPBACK_ONLY = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
LOOPBACK_ROUTE_6 = "00000000000000000000000000000001 80 " + "0 " * 7 + "lo\n"


def test_a_machine_with_only_loopback_routes_has_no_network(tmp_path: Path) -> None:
    (tmp_path / "route").write_text(LOOPBACK_ONLY)
    (tmp_path / "ipv6").write_text(LOOPBACK_ROUTE_6)
    assert not pip_magic.has_network(str(tmp_path / "route"), str(tmp_path / "ipv6"))


def test_a_route_through_another_interface_is_a_network(tmp_path: Path) -> None:
    (tmp_path / "route").write_text(LOOPBACK_ONLY + "eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
    assert pip_magic.has_network(str(tmp_path / "route"), "/nonexistent")


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("install requests-made-up", True),
        ("install -U pytest", True),
        ("install -r requirements.txt", True),
        ("download six-made-up", True),
        ("install --no-index --find-links /wheels six", False),
        ("install ./package", False),
        ("install pytest", False),
        ("install pytest==0.0.1", True),
        ("install --index-url http://127.0.0.1:8080/simple thing", False),
        ("list", False),
        ("uninstall -y thing", False),
        ("--version", False),
        ("", False),
    ],
)
def test_pip_asks_an_index_only_when_it_must(
    line: str, needed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith("PIP_") or pip_magic.is_proxy(name):
            monkeypatch.delenv(name)
    (tmp_path / "package").mkdir()
    (tmp_path / "requirements.txt").write_text("six-made-up\n")
    monkeypatch.chdir(tmp_path)
    assert pip_magic.needs_index(line.split()) is needed


@pytest.fixture
def offline_python(tmp_path: Path) -> str:
    """An interpreter that starts in a network namespace of its own."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], capture_output=True).returncode != 0:
        pytest.skip("this host does not let us make a network namespace")
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {unshare} -rn {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_without_a_network_pip_fails_at_once_with_a_hint(
    start_guest: Callable[..., Guest], offline_python: str
) -> None:
    guest = start_guest(python=offline_python)
    outcome = guest.run("%pip install some-made-up-package\nprint('not reached')")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "this sandbox has no network" in outcome.stderr
    assert "hint: " in outcome.stderr
    assert guest.run("%pip --version").exit_code == 0


def test_a_failing_pip_fails_the_cell(guest: Guest) -> None:
    outcome = guest.run("%pip install --no-index some-made-up-package")
    assert outcome.exit_code == 1
    assert outcome.error == {"name": "CommandFailed", "message": "pip ended with exit code 1"}
