from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.images.stores import ImageFolder


@pytest.fixture
def store(tmp_path: Path) -> ImageFolder:
    """An empty one."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    return ImageFolder(cache)


@pytest.fixture(scope="session")
def first_store(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """With the image of the default template."""
    store = ImageFolder(tmp_path_factory.mktemp("images"))
    assert store.run("1")["images"]["poured"] == 0
    return store


@pytest.fixture
def warm_store(store: ImageFolder, first_store: ImageFolder) -> ImageFolder:
    """A copy of that one, which the test may change."""
    shutil.copytree(first_store.cache, store.cache, dirs_exist_ok=True)
    return store
