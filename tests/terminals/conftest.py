"""Terminals to type into, which are closed with their sandboxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ramet import Sandbox
from tests.terminals.screens import Screen

OpenScreen = Callable[..., Screen]


@pytest.fixture
def screen_of(sandbox: Sandbox) -> Iterator[OpenScreen]:
    """Opens terminals in the sandbox, each with somebody who reads it."""
    screens: list[Screen] = []

    def open_screen(*arguments: Any, in_sandbox: Sandbox = sandbox, **options: Any) -> Screen:
        screens.append(Screen(in_sandbox.terminal(*arguments, **options)))
        return screens[-1]

    yield open_screen
    sandbox.close()
    for screen in screens:
        screen.close()


@pytest.fixture
def shell(screen_of: OpenScreen) -> Screen:
    """A bash without start files or line editing: what it prints is what it was told to."""
    screen = screen_of(["bash", "--norc", "--noediting"], env={"PS1": "$ "})
    screen.wait_for("$ ")
    return screen
