"""Two builds of one version are told apart, and one build is itself wherever it is asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ramet.transport import builds


def test_a_build_is_the_same_in_every_process() -> None:
    code = "from ramet.transport.builds import build; print(build())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    version, _, digest = said.strip().partition(" ")
    assert said.strip() == builds.build()
    assert (version, len(digest)) == (builds.package_version(), 12)


def test_another_build_of_the_same_version_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = builds.build.__wrapped__()
    lines = builds._installed(builds._distribution())
    monkeypatch.setattr(builds, "_installed", lambda _: [*lines, "ramet/new.py,sha256=0,1"])
    other = builds.build.__wrapped__()
    assert other != ours
    assert other.partition(" ")[0] == ours.partition(" ")[0]


def test_a_checkout_is_known_by_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "_installed", lambda _: [])
    assert any(line.startswith("ramet/transport/builds.py ") for line in builds._on_disk())
    assert builds.build.__wrapped__() == builds.build.__wrapped__()
