"""The folder in which an owner's packages are kept is one that nobody else can write to, or put another in place of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.isolation.files import cache_folders


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With the mask of systems on which each user has a group."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = os.umask(0o002)
    yield tmp_path
    os.umask(before)


def test_it_is_made_for_its_owner_alone(cache: Path) -> None:
    assert cache_folders.find("packages") == str((cache / "ramet" / "packages").resolve())
    assert [path.stat().st_mode & 0o777 for path in (cache / "ramet", cache / "ramet" / "packages")] == [0o700, 0o700]
    assert cache_folders.find("packages") is not None


@pytest.mark.parametrize("place", ["ramet", "ramet/packages"])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_one_that_others_could_change_is_not_used(cache: Path, place: str, mode: int) -> None:
    cache_folders.find("packages")
    (cache / place).chmod(mode)
    assert cache_folders.find("packages") is None


def test_behind_a_link_the_place_itself_counts(cache: Path) -> None:
    real = cache / "shared" / "packages"
    real.mkdir(parents=True, mode=0o700)
    real.parent.chmod(0o777)
    (cache / "ramet").mkdir(mode=0o700)
    (cache / "ramet" / "packages").symlink_to(real)
    assert cache_folders.find("packages") is None
