"""Many sandboxes at once: made by several threads, of several kinds, ended in several ways."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from ramet import Sandbox


def _live(number: int) -> str:
    """One short life. Limits of its own keep it from being taken from the pool, so that all of it is made anew."""
    choice = random.Random(number)
    with Sandbox(memory_mib=256 + number, recover="fresh") as sandbox:
        said = sandbox.run_code("import os; print(os.getpid() != 1, 6 * 7)", timeout=60).stdout
        if choice.random() < 0.3:
            said += sandbox.run_code("import os; os._exit(4)").state + str(sandbox.run_code("1").restarted)
        if choice.random() < 0.3:
            said += str(sandbox.run_code("while True: pass", timeout=0.05).cause)
    return said


@pytest.mark.deep("load")
def test_sandboxes_made_by_many_threads_at_once_all_answer() -> None:
    with ThreadPoolExecutor(8) as threads:
        lives = list(threads.map(_live, range(96)))
    assert {life.partition("\n")[0] for life in lives} == {"True 42"}
    assert {life.partition("\n")[2] for life in lives} == {"", "lostTrue", "timeout", "lostTruetimeout"}
