"""One guest per test module where tests leave no traces, a fresh one where they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guest.guest_driver import Guest
from tests.guest.tool_engine import Handler, ToolEngine


@pytest.fixture
def start_guest(tmp_path: Path) -> Iterator[Callable[..., Guest]]:
    """Starts guests with options; ends them after the test."""
    started: list[Guest] = []

    def start(**options: Any) -> Guest:
        options.setdefault("cwd", str(tmp_path))
        guest = Guest(**options)
        started.append(guest)
        return guest

    yield start
    for guest in started:
        guest.close()


@pytest.fixture
def guest(start_guest: Callable[..., Guest]) -> Guest:
    return start_guest()


@pytest.fixture
def start_engine() -> Iterator[Callable[[Handler], ToolEngine]]:
    """Starts what answers tool calls; ends it after the test."""
    started: list[ToolEngine] = []

    def start(handler: Handler) -> ToolEngine:
        started.append(ToolEngine(handler))
        return started[-1]

    yield start
    for engine in started:
        engine.close()


@pytest.fixture
def tool_guest(start_guest: Callable[..., Guest], tmp_path: Path) -> Guest:
    """Its commands lie in a folder of the test's."""
    return start_guest(commands=str(tmp_path / "run" / "bin"))
