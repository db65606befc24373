from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ramet import Sandbox
from tests.fork.relatives import TOOLS, Fork, run
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


@pytest.fixture
def parent(sandbox: Sandbox) -> Sandbox:
    """A fresh sandbox with the tools of the tests of forks in its namespace."""
    run(sandbox, TOOLS)
    return sandbox


@pytest.fixture
def fork() -> Iterator[Fork]:
    """Copies of a sandbox, as a fork would give, but each from an image on disk."""
    with ExitStack() as stack:

        def save_and_load(sandbox: Sandbox, n: int = 1, **options: Any) -> list[Sandbox]:
            if options:
                pytest.skip("only forks have these options")
            with sandbox.snapshot() as snapshot:
                snapshot.save("through-an-image")
            return [stack.enter_context(Sandbox("through-an-image")) for _ in range(n)]

        yield save_and_load
