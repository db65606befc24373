"""A template that the host's kernel killed, for want of memory say, is booted again when somebody needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own, and so with an engine of its own: everything frozen in it is killed.
_PROGRAM = """
import os, signal
from ramet import Sandbox
from ramet.transport import embedded
from tests.walls.family import below, stat_fields

def kill_what_is_frozen():
    for pid, _ in below(embedded.default_engine().pid):
        if stat_fields(pid)[:1] == ["t"]:
            os.kill(pid, signal.SIGKILL)

with Sandbox(recover="fresh") as sandbox:
    kill_what_is_frozen()
"""
_CREATE = """
    for _ in range(5):  # the first few were thawed ahead
        with Sandbox() as another:
            print(another.run_code("6 * 7").value)
"""
_REVIVE = """
    print(sandbox.run_code("import os; os._exit(3)").state)
    result = sandbox.run_code("6 * 7")
    print(result.value, result.restarted)
"""


@pytest.mark.parametrize(
    ("then", "said"),
    [(_CREATE, "42\n" * 5), (_REVIVE, "lost\n42 True\n")],
    ids=["sandboxes are made", "a REPL is started again"],
)
def test_a_template_that_was_killed_is_booted_again(then: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM + then],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.stdout, done.returncode) == (said, 0), done.stderr
