"""The things that are set up in a process and looked at in its copy, and what they share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

Check = Callable[[], object]
THINGS: dict[str, Callable[[], Check]] = {}
libc = ctypes.CDLL(None, use_errno=True)
kept: list[object] = []  # what no check refers to, and must stay open


def thing(set_up: Callable[[], Check]) -> Callable[[], Check]:
    THINGS[set_up.__name__] = set_up
    return set_up


def refused(action: Callable[[], object], *numbers: int) -> None:
    with pytest.raises(OSError) as refusal:
        action()
    assert refusal.value.errno in numbers, refusal.value
