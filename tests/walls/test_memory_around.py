"""A limit of memory around the owner, as a container has it, where sandboxes have no control groups of their own."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.isolation.kernel import cgroups

_LIMIT_MIB = 600

_ENTER = """
import os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as door:
    door.write(str(os.getpid()))
"""

_STARVE = """
from ramet import Sandbox
from ramet.isolation.kernel import cgroups
cgroups.delegate = lambda owner_uid: cgroups.NONE
score = "print(open('/proc/self/oom_score_adj').read().strip())"
with Sandbox(memory_mib=2048, recover="fresh") as greedy, Sandbox(memory_mib=2048) as neighbour:
    print(greedy.run_code(score).stdout, end="")
    neighbour.run_code("kept = 42")
    greedy.run_code("import os; os.environ['BEFORE'] = 'lost'")
    result = greedy.run_code("held = b'x' * (900 << 20)")
    print(result.state, result.cause, result.exit_code)
    result = greedy.run_code("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    print(result.state, result.cause, result.exit_code)
    print(neighbour.run_code("kept").value, greedy.run_code("1 + 1").value)
"""


@pytest.fixture
def limited() -> Iterator[Path]:
    """A group in which everybody together may have so much memory."""
    mounts, own = cgroups._hierarchies(), cgroups._own_groups()
    folder = None
    for controller, file in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        if controller not in mounts or controller not in own:
            continue
        for above in dict.fromkeys((own[controller], os.path.dirname(own[controller]))):
            candidate = Path(os.path.normpath(f"{mounts[controller]}/{above}/test-{secrets.token_hex(4)}"))
            try:
                candidate.mkdir()
            except OSError:
                continue
            try:
                (candidate / file).write_text(str(_LIMIT_MIB << 20))
                swap = candidate / "memory.swap.max"
                if swap.exists():
                    swap.write_text("0")
                folder = candidate
                break
            except OSError:
                candidate.rmdir()
        if folder is not None:
            break
    if folder is None:
        pytest.skip("no control group for memory can be made here")
    yield folder
    until = time.monotonic() + 20
    while True:
        try:
            folder.rmdir()
            return
        except OSError:  # processes that have just ended leave their groups a moment later
            assert time.monotonic() < until
            time.sleep(0.02)


def _run(group: Path, program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _ENTER + program, str(group)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.deep("load")
def test_a_sandbox_gets_half_of_the_limit_that_its_owner_stands_under(limited: Path) -> None:
    program = "from ramet.transport import resolving; print(resolving.default_memory_mib())"
    assert _run(limited, program) == [str(_LIMIT_MIB // 2)]


@pytest.mark.deep("load")
def test_when_a_limit_around_all_is_reached_the_greedy_sandbox_goes_and_the_reason_is_told(limited: Path) -> None:
    score, starved, killed, lives = _run(limited, _STARVE)
    assert score == "1000"
    assert starved == "lost out of memory 137"
    assert killed == "lost signal 9 137"
    assert lives == "42 2"
