"""Sandboxes to attack from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ramet import Sandbox
from tests.walls.attempts import armed


@pytest.fixture(scope="module")
def walled() -> Iterator[Sandbox]:
    """One sandbox for all attempts of a module that leave nothing behind."""
    with Sandbox() as sandbox:
        yield armed(sandbox)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """A fresh sandbox; if its Python dies, it starts empty again."""
    with Sandbox(recover="fresh") as fresh:
        yield fresh


@pytest.fixture
def attacker(sandbox: Sandbox) -> Sandbox:
    """A fresh sandbox with the tools for attempts, for those that do leave something behind."""
    return armed(sandbox)
