"""Undo and recovery of sandboxes in odd states: pending work, other interpreters, killed shadows, many at once."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from ramet import PointUnknown, Sandbox
from ramet.transport import embedded
from tests.behaviour.waiting import wait_until
from tests.fork import loop_work
from tests.fork.relatives import run, value
from tests.pythons import VERSIONS, python_of
from tests.walls.family import below

_AT_ONCE = 64


@pytest.mark.parametrize("version", VERSIONS)
def test_work_in_an_event_loop_goes_on_after_an_undo_and_after_a_death(version: str, tmp_path: Path) -> None:
    """Before 3.12 the copy must have the process id of the sandbox."""
    with Sandbox(python=python_of(version, tmp_path / "environment"), history=10) as sandbox:
        loop_work.begin(sandbox)
        run(sandbox, "kept = 1")
        run(sandbox, "kept = 2")
        sandbox.undo()
        assert value(sandbox, "kept") == 1
        loop_work.assert_goes_on(sandbox)
        assert sandbox.run_code("import os; os._exit(3)", timeout=60).state == "restored"
        loop_work.assert_goes_on(sandbox)
        assert value(sandbox, "kept") == 1


@pytest.mark.deep("load")
def test_many_sandboxes_are_undone_at_once() -> None:
    with ThreadPoolExecutor(16) as threads:
        sandboxes = list(threads.map(lambda _: Sandbox(history=5), range(_AT_ONCE)))
        try:

            def live(number: int) -> tuple[object, object]:
                sandbox = sandboxes[number]
                for step in range(4):
                    run(sandbox, f"x = {number}, {step}")
                sandbox.undo(2)
                undone = value(sandbox, "x")
                sandbox.run_code("import os; os._exit(1)", timeout=60)
                return undone, value(sandbox, "x")

            found = list(threads.map(live, range(_AT_ONCE)))
        finally:
            list(threads.map(lambda sandbox: sandbox.close(), sandboxes))
    assert found == [((number, 1), (number, 1)) for number in range(_AT_ONCE)]


def test_a_point_whose_process_was_killed_is_gone_and_the_sandbox_goes_on() -> None:
    with Sandbox(history=5) as sandbox:
        run(sandbox, "x = 1")
        run(sandbox, "x = 2")  # the state before it is kept now
        (frozen,) = _frozen_states()
        os.kill(frozen, signal.SIGKILL)
        with pytest.raises(PointUnknown, match="its frozen process was killed"):
            sandbox.undo()
        assert value(sandbox, "x") == 2
        assert not sandbox.history()[1].kept
        sandbox.undo()
        assert value(sandbox, "x") == 2


def test_a_state_is_restored_with_the_rights_and_the_rank_that_it_had() -> None:
    """A frozen state is the first that the kernel ends when memory runs out; the sandbox that is made of it is not."""
    with Sandbox(history=5) as sandbox:
        rank = value(sandbox, "int(open('/proc/self/oom_score_adj').read())")
        run(sandbox, "x = 1")
        sandbox.undo()
        assert value(sandbox, "int(open('/proc/self/oom_score_adj').read())") == rank
        run(sandbox, "x = 1")
        (child,) = sandbox.fork(at=sandbox.history()[-2])
        with child:
            assert value(child, "int(open('/proc/self/oom_score_adj').read())") == rank


def test_points_of_an_idle_sandbox_go_with_it() -> None:
    with Sandbox() as sandbox:
        for number in range(3):
            run(sandbox, f"x = {number}")
            wait_until(lambda: sandbox.history()[-1].kept, "the state is kept")
        assert len(_frozen_states()) == 3
    assert _frozen_states() == []


def _frozen_states() -> list[int]:
    """The processes of this program's engine that the kernel is to end first: the kept states."""
    with Sandbox() as sandbox:
        if "cgroup" not in str(sandbox.info().walls["memory"]):
            pytest.skip(
                "without a memory cgroup the kernel is to end every sandbox first, and kept states are not told apart"
            )
    ranks = {}
    for pid, _ in below(embedded.default_engine().pid):
        with suppress(OSError):  # it has ended
            ranks[pid] = int(Path(f"/proc/{pid}/oom_score_adj").read_text())
    return [pid for pid, rank in ranks.items() if rank == 1000]


def test_a_point_that_the_kernel_ended_is_not_told_as_the_cause_of_a_later_death() -> None:
    with Sandbox(history=5, memory_mib=128) as sandbox:
        if "cgroup" not in str(sandbox.info().walls["memory"]):
            pytest.skip("needs a memory cgroup, in which the kernel ends kept states first")
        run(sandbox, "data = bytearray(b'x' * (60 << 20))")
        for number in range(20):  # what a point holds is allowed on top once it was measured: the next one dies
            run(sandbox, f"for place in range(0, len(data), 4096): data[place] = {number}")
            if killed := any("memory was short" in point.note for point in sandbox.history()):
                break
        assert killed
        result = sandbox.run_code("import os; os.kill(os.getpid(), 9)", timeout=60)
        assert (result.state, result.cause) == ("restored", "signal 9")
        result = sandbox.run_code("more = [bytearray(b'y' * (1 << 20)) for _ in range(1000)]", timeout=60)
        assert (result.state, result.cause) == ("restored", "out of memory")
