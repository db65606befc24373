"""A REPL that dies is restored to the last kept state: a crash costs one cell, not everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ramet import Sandbox
from tests.behaviour.deaths import DEATHS
from tests.behaviour.faces import AnySandbox, MakeSandbox
from tests.behaviour.waiting import AFTER_GO, go, wait_until

MakeOne = Callable[..., Sandbox]


@pytest.fixture
def remembering(make_any_sandbox: MakeSandbox) -> AnySandbox:
    return make_any_sandbox(history=20)


@pytest.mark.promise("restore-repl")
@pytest.mark.parametrize(("code", "exit_code", "cause"), DEATHS)
def test_a_death_costs_one_cell(remembering: AnySandbox, code: str, exit_code: int, cause: str) -> None:
    remembering.run_code("kept = 1\n_ = open('/root/file', 'w').write('before')")
    dead = remembering.run_code("open('/root/file', 'w').write('after'); kept = 2\n" + code, timeout=60)
    assert (dead.state, dead.exit_code, dead.cause, dead.ok) == ("restored", exit_code, cause, False)
    assert (dead.stdout, dead.interrupted, dead.restarted) == ("last words\n", False, False)
    assert dead.error is not None
    assert "restored to the state after cell 1" in dead.error.message
    assert dead.stderr.endswith(f"ramet: {dead.error.message}\n")
    again = remembering.run_code("kept, open('/root/file').read()")
    assert (again.value, again.restarted, again.state, again.stderr) == ("(1, 'before')", False, "kept", "")
    last = remembering.history()[-2]
    assert (last.outcome, last.lost, last.kept) == ("died", True, False)


def test_out_of_memory_costs_one_cell_again_and_again(make_any_sandbox: MakeSandbox) -> None:
    small = make_any_sandbox(memory_mib=128, history=20)
    small.run_code("kept = bytearray(b'k' * (20 << 20))")
    if "cgroup" not in str(small.info().walls["memory"]):
        pytest.skip("this host has no writable control group for memory")
    for _ in range(3):
        dead = small.run_code("blocks = []\nwhile True: blocks.append(bytearray(1 << 20))", timeout=60)
        assert (dead.state, dead.cause, dead.exit_code) == ("restored", "out of memory", 137)
        assert small.run_code("len(kept)").value == str(20 << 20)


@pytest.mark.deep("load")
def test_a_sandbox_may_use_all_its_memory_though_points_hold_some(make_sandbox: MakeOne) -> None:
    """What points hold is allowed on top of its limit, or the kernel ends them first."""
    sandbox = make_sandbox(memory_mib=200, history=20)
    if "cgroup" not in str(sandbox.info().walls["memory"]):
        pytest.skip("this host has no writable control group for memory")
    for number in range(12):
        result = sandbox.run_code(f"data = bytearray(bytes([{number} + 1]) * (60 << 20)); data[-1]")
        assert (result.value, result.state) == (str(number + 1), "kept")
    assert sandbox.run_code("data[0]").value == "12"
    greedy = sandbox.run_code("more = bytearray(b'x' * (190 << 20))")
    assert greedy.cause == "out of memory"


def test_many_deaths_in_a_row_leave_the_only_kept_state(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=2)
    sandbox.run_code("data = 1")
    for _ in range(6):
        assert sandbox.run_code("import os; os._exit(3)").state == "restored"
    assert sandbox.run_code("data").value == "1"


def test_a_death_during_a_stream_tells_the_restore_before_its_exit_event(remembering: AnySandbox) -> None:
    remembering.run_code("kept = 1")
    events = list(remembering.run_code_stream("import os\nprint('last words')\nos._exit(4)"))
    last = events[-1]
    assert last.type == "exit"
    assert (last.code, last.result.state) == (4, "restored")
    assert "restored to the state after cell 1" in "".join(event.data for event in events if event.type == "stderr")
    assert remembering.run_code("kept").value == "1"


def test_a_death_between_cells_is_told_by_the_next_cell_which_runs_in_the_restored_state(
    remembering: AnySandbox,
) -> None:
    remembering.run_code("kept = 1")
    remembering.run_code("kept = 2\n" + AFTER_GO + "after_go(lambda: os._exit(5))")
    go(remembering)
    wait_until(lambda: remembering.info().state == "lost", "the REPL died between cells")
    after = remembering.run_code("kept")
    assert (after.restarted, after.state, after.ok) == (False, "kept", True)
    assert "because the sandbox's Python had ended: it exited with code 5" in after.stderr
    assert "started from the state after cell" in after.stderr
    assert remembering.run_code("kept").stderr == ""


def test_a_state_that_ends_as_soon_as_it_is_woken_is_not_restored_for_ever(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=20)
    sandbox.run_code("kept = 1")
    # The deadline is in the past whenever this state is woken again.
    sandbox.run_code("import threading, os; threading.Timer(0.5, os._exit, (5,)).start()")
    sandbox.run_code("pass")
    wait_until(lambda: sandbox.info().state == "lost", "the timer has ended the REPL")
    after = sandbox.run_code("kept")
    assert (after.value, after.restarted) == ("1", False)
    assert "the work of cell" in after.stderr
    assert sandbox.run_code("kept").value == "1"


@pytest.mark.deep("load")
def test_a_state_that_ends_a_while_after_it_was_woken_is_not_restored_for_ever(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=20)
    sandbox.run_code("kept = 1")
    sandbox.run_code(
        "import os, threading, time\n"
        "def end():\n    for _ in range(5): time.sleep(0.1)\n    os._exit(5)\n"
        "threading.Thread(target=end, daemon=True).start()"
    )
    for _ in range(4):
        last = sandbox.run_code("import time; time.sleep(2); kept", timeout=60)
        if last.ok:
            break
        assert last.state == "restored"
    assert last.value == "1"
    assert "soon after it is woken" in sandbox.history()[2].note


def test_cells_whose_state_was_not_kept_are_named(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox()
    sandbox.run_code("pass")
    wait_until(lambda: sandbox.history()[-1].kept, "the state is kept in the idle moment")
    missing: list[int] = []
    while not missing:
        for _ in range(50):
            sandbox.run_code("pass")
        missing = [point.cell_id for point in sandbox.history() if not point.kept]
    dead = sandbox.run_code("import os; os._exit(3)")
    points = {point.cell_id: point for point in sandbox.history()}
    back_at = max(cell for cell, point in points.items() if point.kept)
    assert dead.error is not None
    assert f"restored to the state after cell {back_at}," in dead.error.message
    lost = [cell for cell, point in points.items() if point.lost and point.outcome != "died"]
    assert lost == [cell for cell, point in points.items() if cell > back_at and point.outcome != "died"]
    assert ("is missing, too" in dead.error.message) is bool(lost)


def test_a_file_written_from_outside_is_there_after_the_next_cell_has_died(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox()
    sandbox.run_code("kept = 1")
    wait_until(lambda: sandbox.history()[-1].kept, "the state is kept in the idle moment")
    for number in range(8):  # more than a new sandbox's free points
        sandbox.files.write("/root/upload.csv", str(number))
        assert sandbox.run_code("import os; os._exit(3)").state == "restored"
        assert sandbox.files.read_text("/root/upload.csv") == str(number)


def test_without_a_kept_state_a_death_leaves_an_empty_python_and_the_files(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox()
    dead = sandbox.run_code("open('/root/file', 'w').write('kept'); import os; os._exit(3)")
    assert dead.state == "lost"
    again = sandbox.run_code("open('/root/file').read()")
    assert (again.value, again.restarted) == ("'kept'", True)
    assert [point.kind for point in sandbox.history()] == ["start", "cell", "restart", "cell"]


def test_with_recover_fresh_the_death_itself_can_be_undone(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=5, recover="fresh")
    sandbox.run_code("kept = 1")
    sandbox.run_code("kept = 2")
    assert sandbox.run_code("import os; os._exit(3)").state == "lost"
    assert sandbox.run_code("'kept' in globals()").restarted
    sandbox.undo(2)  # the cell, and the restart
    assert sandbox.run_code("kept").value == "2"


def test_a_child_is_restored_to_what_it_inherited(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=5)
    sandbox.run_code("kept = 1")
    sandbox.run_code("pass")
    (child,) = sandbox.fork()
    with child:
        assert child.run_code("import os; os._exit(3)").state == "restored"
        assert child.run_code("kept").value == "1"
    assert sandbox.run_code("kept").value == "1"
