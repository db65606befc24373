"""An engine without sandboxes gives its memory back, a while after the last one was closed."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys

import pytest

from ramet.engine import idle_memory
from ramet.engine.idle_memory import IdleMemory


async def trims(monkeypatch: pytest.MonkeyPatch, idle: list[bool], closings: int) -> int:
    """How often the heap was trimmed. ``idle``: what is answered to each question, the last one for ever."""
    counted: list[None] = []
    monkeypatch.setattr(idle_memory, "trim", lambda: counted.append(None))
    memory = IdleMemory(0.01, lambda: idle.pop(0) if len(idle) > 1 else idle[0])
    for _ in range(closings):
        memory.closed_one()
    await asyncio.sleep(0.05)
    memory.stop()
    return len(counted)


async def test_memory_is_given_back_once_after_the_last_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await trims(monkeypatch, [True], 5) == 1


async def test_memory_is_kept_while_there_are_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await trims(monkeypatch, [False], 5) == 0
    assert await trims(monkeypatch, [True, False], 1) == 0  # somebody made one meanwhile


def test_trimming_gives_back_what_was_freed() -> None:
    """In a process of its own: what the allocator of this one keeps depends on all tests before."""
    code = """
from ramet.engine.idle_memory import trim
def resident(): return int(open("/proc/self/statm").read().split()[1])
kept = [bytes(2000) for _ in range(100_000)]
fence = [bytes(2000) for _ in range(10)]  # above them: the heap cannot shrink by itself
del kept
before = resident()
trim()
print(before - resident())
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(said) * resource.getpagesize() > 100 << 20
