"""Interrupts and deadlines at random moments around the beginning of a cell.

Each is obeyed, or the cell had ended before it and says so. The engine of these tests interrupts once and not again for
a long time: an interrupt that is dropped is a cell that hangs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pythons import VERSIONS, python_of

SECONDS = 170
PROGRAM = """
import random, sys, threading, time
from ramet import Sandbox
from ramet.transport import embedded

embedded.engine_options[:] = ["--interrupt-seconds", "1000,1000,1000"]
python, rounds = sys.argv[1], int(sys.argv[2])

def after(milliseconds, action):
    end = time.perf_counter() + random.random() * milliseconds / 1000
    while time.perf_counter() < end:
        pass
    return action()

# Nothing in them waits in the kernel: what comes in the instant before that is seen when the wait is over.
ENDLESS = ["while True: pass", "while True: await asyncio.sleep(0)"]
INTERRUPTED = (True, 130, "kept", None)

with Sandbox(python=python) as sandbox:
    def state(result):
        return result.interrupted, result.exit_code, result.state, result.value

    sandbox.run_code("import asyncio; kept = 1")
    for number in range(rounds):
        results = []
        thread = threading.Thread(target=lambda: results.append(sandbox.run_code(ENDLESS[number % 2])))
        thread.start()
        after(4, lambda: None)
        while not sandbox.interrupt():
            pass
        thread.join(60)
        assert not thread.is_alive(), f"interrupt {number} was dropped"
        assert (state(results[0]), results[0].cause) == (INTERRUPTED, "interrupt"), results
    for number in range(rounds):
        seconds = random.choice([1e-6, random.random() * 0.004])
        result = sandbox.run_code(ENDLESS[number % 2], timeout=seconds)
        assert (state(result), result.cause) == (INTERRUPTED, "timeout"), result
    for number in range(rounds):
        seconds = random.random() * 0.002 + 1e-6
        result = sandbox.run_code(f"for i in range({number % 50}): pass\\n{number}", timeout=seconds)
        assert state(result) in (INTERRUPTED, (False, 0, "kept", str(number))), result
        assert result.ok == (result.value is not None) and (result.cause is None) == result.ok, result
    assert sandbox.run_code("kept").value == "1"
print("all obeyed")
"""


def assert_obeyed(python: str, rounds: int) -> None:
    program = [sys.executable, "-c", PROGRAM, python, str(rounds)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (ended.stdout, ended.stderr) == ("all obeyed\n", "")


@pytest.mark.deep("load")
def test_interrupts_at_random_moments_of_a_cells_beginning_are_obeyed() -> None:
    assert_obeyed(sys.executable, rounds=30)


@pytest.mark.deep("load")
@pytest.mark.parametrize("version", VERSIONS)
def test_five_hundred_interrupts_at_random_moments_are_obeyed_by_every_python(version: str, tmp_path: Path) -> None:
    assert_obeyed(python_of(version, tmp_path / "python"), rounds=500)
