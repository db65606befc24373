"""The published client as it was before its second version: other headers, no threads, the same answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.gateways import Gateway
from tests.gateway.upstreams import ScriptedUpstream, python, says

_VERSION = "1.17.0"
_INSTALL_SECONDS = 300
_RUN_SECONDS = 120
_PROGRAM = Path(__file__).with_name("older_program.py")
_CODE = "print(await get_weather(location='A'))"


@pytest.fixture(scope="session")
def older_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has it. What it needs is what the newer one has brought."""
    folder = tmp_path_factory.mktemp("older-client")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    done = subprocess.run(
        [*command, f"anthropic=={_VERSION}"], capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
    )
    assert done.returncode == 0, f"anthropic {_VERSION} could not be installed: {done.stderr}"
    return folder


@pytest.mark.deep("libraries")
def test_a_program_with_an_older_client(upstream: ScriptedUpstream, gateway: Gateway, older_client: Path) -> None:
    upstream.will(*[says(python(_CODE)), says("It rains.")] * 2)
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), gateway.url, _VERSION],
        capture_output=True,
        text=True,
        timeout=_RUN_SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": str(older_client)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"all of it works with {_VERSION}\n"
    assert {asked.headers["x-api-key"] for asked in upstream.samples} == {"sk-of-an-older-client"}


@pytest.mark.deep("libraries")
def test_the_same_program_with_the_newest_client(upstream: ScriptedUpstream, gateway: Gateway) -> None:
    upstream.will(*[says(python(_CODE)), says("It rains.")] * 2)
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), gateway.url, "2."],
        capture_output=True,
        text=True,
        timeout=_RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {asked.headers["authorization"] for asked in upstream.samples} == {"Bearer sk-of-an-older-client"}
