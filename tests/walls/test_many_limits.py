"""Whatever limits are asked for, what an engine keeps ready stays bounded, and goes when nobody asks any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own, and so with an engine of its own.
_PROGRAM = """
import resource, sys, time
hard = int(sys.argv[3])
if hard:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
from ramet import Sandbox
from tests.behaviour.memory import engine_pid
from tests.processes import descendants, descriptor_count

def settled(bounds, seconds):
    end = time.monotonic() + seconds
    while True:
        found = descriptor_count(engine_pid()), len(descendants(engine_pid()))
        if found[0] <= bounds[0] and found[1] <= bounds[1] or time.monotonic() > end:
            return found
        time.sleep(0.1)

Sandbox(memory_mib=255).close()
time.sleep(1)
start = settled((0, 0), 2)
kinds, factor = int(sys.argv[1]), float(sys.argv[2])
for number in range(kinds):
    with Sandbox(memory_mib=256 + number) as sandbox:
        assert sandbox.run_code("6 * 7").value == "42"
bounds = [int(factor * count) for count in start]
found = settled(bounds, 120)
print("bounded" if found[0] <= bounds[0] and found[1] <= bounds[1] else f"{start} became {found}")
with Sandbox(memory_mib=1000) as sandbox:
    print(sandbox.run_code("6 * 7").value)
"""


def _run(kinds: int, factor: float, descriptors: int = 0) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(kinds), str(factor), str(descriptors)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:2]


@pytest.mark.deep("load")
def test_many_kinds_of_sandboxes_one_after_the_other_keep_no_more_ready_than_a_few() -> None:
    """Four kinds of pods and eight of sandboxes: a few times what one kind keeps."""
    assert _run(20, 8.0) == ["bounded", "42"]


@pytest.mark.deep("load")
def test_after_eighty_kinds_descriptors_and_processes_are_back_where_they_were() -> None:
    assert _run(80, 1.25) == ["bounded", "42"]


@pytest.mark.deep("load")
def test_what_waits_makes_room_where_descriptors_are_few() -> None:
    assert _run(150, 100.0, descriptors=2048) == ["bounded", "42"]
