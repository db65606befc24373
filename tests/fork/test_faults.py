"""A freeze or a thaw that fails half-way, at every step there is: nothing is left behind, and the parent goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ramet import ForkFailed, LimitReached, Sandbox
from ramet.transport import embedded

_STEPS_AT_LEAST = 40
_STEPS_AT_MOST = 400
_SUCCESSES_IN_A_ROW = 12  # at some steps a failure is no harm: what was asked for is found in another way


@pytest.fixture
def engine_that_fails() -> Iterator[None]:
    """An engine of its own, in which each fork fails one step later than the one before."""
    options = list(embedded.engine_options)
    embedded.close_engine()
    embedded.engine_options.append("--sweep-faults")
    yield
    embedded.close_engine()
    embedded.engine_options[:] = options


def _processes_of_the_engine() -> int:
    """All that hang on the engine's launcher."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(parent, []).append(int(name))
    found, below = 0, [embedded.default_engine().pid]
    while below:
        children = parents.get(below.pop(), [])
        found += len(children)
        below += children
    return found


def _settled() -> int:
    """Their number once it stays the same: what was thawed ahead is part of it."""
    seen = [_processes_of_the_engine()]
    with Sandbox(history=False) as other:
        while len(seen) < 200 and (len(seen) < 5 or len(set(seen[-5:])) > 1):
            other.run_code("import time; time.sleep(0.01)")
            seen.append(_processes_of_the_engine())
    return seen[-1]


@pytest.mark.promise("fork-all-or-none")
@pytest.mark.usefixtures("engine_that_fails")
@pytest.mark.deep("load")
def test_a_fork_that_fails_at_any_step_harms_nobody_and_leaves_nothing() -> None:
    failures: list[str] = []
    with Sandbox(history=False) as neighbour:
        neighbour.run_code("kept = 41")
        before = _settled()
        in_a_row = 0
        while in_a_row < _SUCCESSES_IN_A_ROW and len(failures) < _STEPS_AT_MOST:
            with Sandbox(history=False) as parent:
                parent.run_code("import threading; told = threading.Event(); a = [1, 2]")
                parent.run_code("threading.Thread(target=told.wait, daemon=True).start()")
                try:
                    with parent.fork(2) as children:
                        answers = [child.run_code("a.append(3); told.set(); a").value for child in children]
                        assert answers == ["[1, 2, 3]"] * 2
                        in_a_row += 1
                except (ForkFailed, LimitReached) as error:
                    failures.append(error.message)
                    in_a_row = 0
                answer = parent.run_code("a.append(4); told.set(); a")
                assert (answer.value, answer.restarted) == ("[1, 2, 4]", False), failures[-1:]
        assert neighbour.run_code("kept + 1").value == "42"
        after = _settled()
    assert all("made to fail" in message for message in failures)
    assert _STEPS_AT_LEAST < len(failures) < _STEPS_AT_MOST
    assert after <= before + 2, "two pods more may be kept ready after forks of two"
