"""Which folders of the host an interpreter brings into a sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.errors import InvalidArgument
from ramet.isolation import interpreter


def _asked(monkeypatch: pytest.MonkeyPatch, prefix: Path) -> None:
    answer = interpreter._Answer((3, 12, 1), "cpython", (str(prefix),), None)
    monkeypatch.setattr(interpreter, "_ask", lambda _: answer)
    interpreter._find.cache_clear()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "homes" / "me"
    (folder / "environment").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_an_environment_below_the_home_folder_is_shown_alone(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    _asked(monkeypatch, home / "environment")
    assert interpreter._find("/usr/bin/env", 0, 0).trees == (str(home / "environment"),)


@pytest.mark.parametrize("above", [0, 1])
def test_an_environment_that_is_the_home_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, home: Path, above: int
) -> None:
    _asked(monkeypatch, home if above == 0 else home.parent)
    with pytest.raises(InvalidArgument, match="sandboxes would see as a whole"):
        interpreter._find("/usr/bin/env", 0, 0)


def test_the_root_of_the_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _asked(monkeypatch, Path("/"))
    with pytest.raises(InvalidArgument):
        interpreter._find("/usr/bin/env", 0, 0)
