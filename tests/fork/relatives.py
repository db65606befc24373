"""Cells run in parents and children, one after another or all at once, and the values they leave."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ramet import Result, Sandbox

# No cell of these tests takes longer by itself: one that does hangs, and its deadline says so.
WATCHDOG_SECONDS = 60

Fork = Callable[..., list[Sandbox]]

# In the parent before it is forked, and so in every child: what waits ends on its condition and is bounded.
TOOLS = """
import os, signal, socket, subprocess, sys, threading, time

def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError('waited in vain')
        time.sleep(0.002)
    return found

def refusal(action, *arguments, **options):
    import errno
    try:
        return action(*arguments, **options)
    except OSError as error:
        return errno.errorcode[error.errno]
"""


def run(sandbox: Sandbox, code: str, timeout: float = WATCHDOG_SECONDS) -> Result:
    """A cell that must end well, in the process that was there before."""
    result = sandbox.run_code(code, timeout=timeout)
    assert result.ok, f"{sandbox.id}: {result}"
    assert not result.restarted, f"{sandbox.id} lost its state before this cell"
    return result


def value(sandbox: Sandbox, code: str, timeout: float = WATCHDOG_SECONDS) -> Any:
    """The value of the last expression of a cell, which must be a literal."""
    text = run(sandbox, code, timeout).value
    return None if text is None else ast.literal_eval(text)


def at_once(sandboxes: Sequence[Sandbox], code: str, timeout: float = WATCHDOG_SECONDS) -> list[Any]:
    """The values of the same cell run in all of them at the same time."""
    with ThreadPoolExecutor(len(sandboxes)) as threads:
        return list(threads.map(lambda each: value(each, code, timeout), sandboxes))


def all_the_same(sandboxes: Sequence[Sandbox], code: str, timeout: float = WATCHDOG_SECONDS) -> Any:
    """The value of a cell that must be one and the same in all of them, run at the same time."""
    values = at_once(sandboxes, code, timeout)
    assert all(each == values[0] for each in values), values
    return values[0]


def one_after_another(sandboxes: Sequence[Sandbox], code: str) -> list[Any]:
    return [value(each, code) for each in sandboxes]
