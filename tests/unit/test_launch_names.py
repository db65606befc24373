"""What of the host an engine is shown so that names can be looked up, and how a process gives up the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.isolation import launch


@pytest.mark.parametrize(
    ("real", "shown"),
    [
        ("/etc/resolv.conf", ()),
        ("/etc/resolvconf/run/resolv.conf", ()),
        ("/run/systemd/resolve/stub-resolv.conf", (Path("/run/systemd/resolve"),)),
        ("/mnt/wsl/resolv.conf", (Path("/mnt/wsl"),)),
        ("/run/resolv.conf", (Path("/run/resolv.conf"),)),
    ],
)
def test_the_folder_of_the_resolver_is_shown_but_never_one_of_the_top(
    monkeypatch: pytest.MonkeyPatch, real: str, shown: tuple[Path, ...]
) -> None:
    monkeypatch.setattr(Path, "resolve", lambda self, strict=False: Path(real))
    assert launch._names() == shown


def test_a_host_without_a_resolver_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path, strict: bool = False) -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "resolve", missing)
    assert launch._names() == ()
