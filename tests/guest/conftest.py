"""One guest per test module where tests leave no traces, a fresh one where they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guest.guest_driver import Guest


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
