"""History, undo and rewind: every cell can be taken back, with memory, threads and files."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ramet import InvalidArgument, Mount, PointUnknown, Sandbox
from tests.behaviour.faces import AnySandbox, MakeSandbox
from tests.behaviour.waiting import UNTIL_GO, go, wait_until

MakeOne = Callable[..., Sandbox]


def value(sandbox: AnySandbox, code: str) -> str | None:
    result = sandbox.run_code(code, timeout=60)
    assert result.ok, result
    return result.value


@pytest.fixture
def remembering(make_any_sandbox: MakeSandbox) -> AnySandbox:
    """One that keeps the state before each of its last 20 cells."""
    return make_any_sandbox(history=20)


@pytest.mark.promise("undo")
def test_undo_takes_back_memory_threads_and_files_of_the_last_cell(remembering: AnySandbox) -> None:
    value(remembering, "import threading, os\nx = 1\n_ = open('/root/file', 'w').write('one')")
    value(
        remembering,
        "x = 2\n_ = open('/root/file', 'w').write('two')\n"
        "gate = threading.Event(); threading.Thread(target=gate.wait, daemon=True).start()",
    )
    assert value(remembering, "threading.active_count()") == "2"
    undone = remembering.undo(2)
    assert (undone.point.id, undone.point.cell_id, undone.cell_ids) == ("p1", 1, (2, 3))
    assert value(remembering, "x, open('/root/file').read(), threading.active_count(), 'gate' in globals()") == (
        "(1, 'one', 1, False)"
    )


def test_history_shows_each_cell_and_what_is_undone_is_gone_from_it(remembering: AnySandbox) -> None:
    value(remembering, "x = 1")
    remembering.run_code("1 / 0")
    value(remembering, "x = 3")
    found = remembering.history()
    assert [(point.id, point.kind, point.cell_id, point.code, point.outcome) for point in found] == [
        ("p0", "start", 0, "", ""),
        ("p1", "cell", 1, "x = 1", "ok"),
        ("p2", "cell", 2, "1 / 0", "error"),
        ("p3", "cell", 3, "x = 3", "ok"),
    ]
    assert [point.kept for point in found][:3] == [True, True, True]
    assert (found.taking, found.note) == ("on", "")
    remembering.undo()
    assert [point.id for point in remembering.history()] == ["p0", "p1", "p2"]
    value(remembering, "x = 4")  # numbers are not given again
    assert [point.id for point in remembering.history()] == ["p0", "p1", "p2", "p4"]


def test_undo_of_all_cells_leads_to_a_sandbox_as_it_was_made(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(history=20, env={"WORD": "given"}, cwd="/tmp")
    value(sandbox, "import os; x = 1; os.environ['WORD'] = 'changed'; os.chdir('/')")
    value(sandbox, "x = 2")
    assert sandbox.undo(2).point.kind == "start"
    assert (
        value(sandbox, "import os; ('x' in globals(), os.environ['WORD'], os.getcwd())") == "(False, 'given', '/tmp')"
    )


def test_a_sandbox_made_from_a_snapshot_begins_with_what_it_was_given_on_top(make_sandbox: MakeOne) -> None:
    look = "import os; (x, os.environ.get('WORD'), os.getcwd())"
    first = make_sandbox()
    value(first, "x = 1")
    with first.snapshot() as snapshot:
        sandbox = make_sandbox(snapshot, history=5, env={"WORD": "given"}, cwd="/tmp")
    value(sandbox, "import os; x = 2; os.environ['WORD'] = 'changed'; os.chdir('/')")
    with sandbox.fork(at="p0") as (child,):
        assert value(child, look) == "(1, 'given', '/tmp')"
        child.undo()
        assert value(child, look) == "(1, 'given', '/tmp')"
    sandbox.undo()
    assert value(sandbox, look) == "(1, 'given', '/tmp')"
    sandbox.undo()
    assert sandbox.run_code("import os; x = 2; os._exit(3)").state == "restored"
    assert value(sandbox, look) == "(1, 'given', '/tmp')"


def test_undo_of_a_restore_in_a_new_sandbox_leads_to_the_sandbox_as_it_was_made(make_sandbox: MakeOne) -> None:
    look = "import os; ('x' in globals(), os.environ.get('WORD'), os.environ.get('OTHER'), os.getcwd())"
    other = make_sandbox(env={"OTHER": "of another"}, cwd="/var")
    value(other, "x = 1")
    sandbox = make_sandbox(history=5, env={"WORD": "given"}, cwd="/tmp")
    with other.snapshot() as snapshot:
        sandbox.restore(snapshot)
    assert value(sandbox, look) == "(True, None, 'of another', '/var')"
    with sandbox.fork(at="p0") as (child,):
        assert value(child, look) == "(False, 'given', None, '/tmp')"
    sandbox.undo(2)
    assert value(sandbox, look) == "(False, 'given', None, '/tmp')"


def test_undo_of_more_cells_than_there_were_is_refused(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=5)
    with pytest.raises(PointUnknown, match="nothing to undo"):
        sandbox.undo()
    value(sandbox, "x = 1")
    with pytest.raises(InvalidArgument, match="n must be at most 1, .*, got 2"):
        sandbox.undo(2)
    with pytest.raises(InvalidArgument, match="n must be at least 1, got 0"):
        sandbox.undo(0)
    assert value(sandbox, "x") == "1"


def test_rewind_goes_to_any_kept_point_by_itself_or_its_id(remembering: AnySandbox) -> None:
    for number in range(1, 5):
        value(remembering, f"x = {number}")
    point = remembering.history()[2]
    assert remembering.rewind(point).cell_ids == (3, 4)
    assert value(remembering, "x") == "2"
    assert remembering.rewind("p1").point.id == "p1"
    assert value(remembering, "x") == "1"


def test_a_point_that_is_no_more_or_never_was_is_refused_by_name(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=5)
    value(sandbox, "x = 1")
    with pytest.raises(PointUnknown, match="there is no point 'p7'"):
        sandbox.rewind("p7")
    wrong: Any = 3
    with pytest.raises(InvalidArgument, match="point must be a Point or the id of one"):
        sandbox.rewind(wrong)
    with pytest.raises(InvalidArgument, match="such as \"p3\", got 'three'"):
        sandbox.rewind("three")
    assert value(sandbox, "x") == "1"


def test_a_fork_at_a_point_leaves_the_sandbox_alone_and_inherits_its_past(remembering: AnySandbox) -> None:
    for number in range(1, 4):
        value(remembering, f"x = {number}; _ = open('/root/x', 'w').write(str(x))")
    child: AnySandbox
    child = remembering.fork(at="p2")[0] if isinstance(remembering, Sandbox) else remembering.fork_at("p2")
    try:
        assert value(child, "x, open('/root/x').read()") == "(2, '2')"
        assert value(remembering, "x") == "3"
        child.undo(2)
        assert value(child, "x, open('/root/x').read()") == "(1, '1')"
        assert value(remembering, "x, open('/root/x').read()") == "(3, '3')"
    finally:
        child.close()


def test_many_forks_at_the_beginning_are_new_sandboxes(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=5)
    value(sandbox, "x = 1")
    with sandbox.fork(3, at="p0") as children:
        assert [value(child, "'x' in globals()") for child in children] == ["False"] * 3
    assert value(sandbox, "x") == "1"


def test_children_have_the_past_of_their_parent_also_when_it_is_closed(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=10)
    for number in range(1, 4):
        value(sandbox, f"x = {number}")
    (child,) = sandbox.fork()
    sandbox.close()
    with child:
        assert [point.cell_id for point in child.history()] == [0, 1, 2, 3]
        child.undo(2)
        assert value(child, "x") == "1"


def test_a_sandbox_without_history_remembers_nothing(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=False)
    value(sandbox, "x = 1")
    value(sandbox, "x = 2")
    found = sandbox.history()
    assert (len(found), found.taking, found.note) == (0, "off", "no points are taken: history=False")
    with pytest.raises(PointUnknown):
        sandbox.undo()
    assert sandbox.run_code("import os; os._exit(3)").state == "lost"


def test_only_as_many_states_are_kept_as_were_asked_for(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=3)
    for number in range(1, 8):
        value(sandbox, f"x = {number}")
    assert [point.id for point in sandbox.history()] == ["p4", "p5", "p6", "p7"]
    sandbox.undo(3)
    assert value(sandbox, "x") == "4"


def test_an_undo_waits_its_turn_and_undoes_the_cells_before_it_in_the_queue(
    make_sandbox: MakeOne, in_background: Callable[..., Future[Any]]
) -> None:
    sandbox = make_sandbox(history=5)
    value(sandbox, "x = 1")
    running = in_background(sandbox.run_code, "open('/root/begun', 'w').close()\n" + UNTIL_GO + "\nx = 2", timeout=60)
    # Not its state, which is "running" while the point before the cell is taken: what `go` writes then is not in it.
    wait_until(lambda: sandbox.files.exists("/root/begun"), "the cell runs")
    undoing = in_background(sandbox.undo)
    wait_until(lambda: sandbox.info().waiting == 1, "the undo waits")
    after = in_background(sandbox.run_code, "x", timeout=60)
    go(sandbox)
    assert running.result(60).ok
    assert undoing.result(60).cell_ids == (2,)
    assert after.result(60).value == "1"


def test_a_restore_is_a_step_that_can_be_undone(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=5)
    value(sandbox, "x = 1")
    with sandbox.snapshot() as snapshot:
        value(sandbox, "x = 2")
        value(sandbox, "x = 3")
        sandbox.restore(snapshot)
    assert [point.kind for point in sandbox.history()][-1] == "restore"
    assert value(sandbox, "x") == "1"
    sandbox.undo()  # of the last cell: the snapshot is closed, and its state still here
    assert value(sandbox, "x") == "1"
    sandbox.rewind("p2")
    assert value(sandbox, "x") == "2"


def test_a_merged_sandbox_goes_on_with_the_past_of_the_winner(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=9)
    value(sandbox, "x = 1")
    (winner,) = sandbox.fork()
    value(winner, "x = 2")
    value(winner, "x = 3")
    value(sandbox, "x = 4")
    sandbox.merge_into(winner)
    assert value(sandbox, "x") == "3"
    sandbox.undo(2)
    assert value(sandbox, "x") == "2"
    sandbox.undo(2)
    assert value(sandbox, "x") == "1"


def test_files_written_from_outside_belong_to_the_state_before_the_next_cell(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=5)
    sandbox.files.write("/root/first", "before the first cell")
    value(sandbox, "x = open('/root/first').read()")
    sandbox.set("y", 5)
    sandbox.files.write("/root/second", "before the second")
    value(sandbox, "import os; os.remove('/root/first'); os.remove('/root/second'); y = 6")
    sandbox.undo()
    assert value(sandbox, "y, open('/root/first').read()[:6], open('/root/second').read()[:6]") == (
        "(5, 'before', 'before')"
    )
    sandbox.undo(2)
    assert value(sandbox, "'x' in globals(), open('/root/first').read()[:6]") == "(False, 'before')"


def test_undo_says_what_it_could_not_undo(make_sandbox: MakeOne, tmp_path: Path) -> None:
    def send(text: str) -> str:
        return text

    sandbox = make_sandbox(history=5, tools=[send], mounts={"/data": Mount(tmp_path, writable=True)})
    value(sandbox, "x = 1")
    value(sandbox, "send(text='hello'); _ = open('/data/file', 'w').write('stays')")
    undone = sandbox.undo()
    assert (undone.tool_calls, undone.connections, undone.writable_mounts) == (("send",), (), ("/data",))
    assert "not undone: tool calls (send)" in str(undone)
    assert (tmp_path / "file").read_text() == "stays"
    assert value(sandbox, "send(text='again')") == "'again'"


def test_by_default_a_sandbox_that_thinks_between_cells_has_a_point_after_each(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox()
    for number in range(1, 8):
        value(sandbox, f"x = {number}")
        wait_until(lambda: sandbox.history()[-1].kept, "the state is kept in the idle moment")
    assert sandbox.info().state == "idle"
    sandbox.undo(4)
    assert value(sandbox, "x") == "3"


@pytest.mark.deep("load")
def test_old_points_are_thinned_in_memory_and_those_that_memory_gives_up_go_to_disk(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox()
    for number in range(1, 25):
        value(sandbox, f"x = {number}")
        wait_until(lambda: sandbox.history()[-1].kept, "the state is kept in the idle moment")

    def places() -> dict[str, list[int]]:
        found = sandbox.history()
        return {place: [point.cell_id for point in found if point.kept_in == place] for place in ("memory", "disk")}

    in_memory = [4, 6, 8, 10, 12, 14, *range(15, 25)]
    wait_until(lambda: places()["memory"] == in_memory, "older ones are thinned out")
    wait_until(lambda: bool(places()["disk"]), "and written")
    assert set(places()["disk"]).isdisjoint(in_memory)
    assert all("older" in point.note for point in sandbox.history() if not point.kept)
    sandbox.rewind("p12")
    assert value(sandbox, "x") == "12"


def test_cells_that_follow_one_another_at_once_soon_get_no_point_and_undo_refuses_to_undo_more(
    make_sandbox: MakeOne,
) -> None:
    sandbox = make_sandbox()
    missing: list[str] = []
    while not missing:
        for _ in range(50):
            sandbox.run_code("pass")
        missing = [point.id for point in sandbox.history()[:-1] if not point.kept]
    unkept = int(missing[-1][1:])
    total = sandbox.history()[-1].cell_id
    with pytest.raises(PointUnknown, match=f"the state after cell {unkept} is not kept"):
        sandbox.undo(total - unkept)


@pytest.mark.deep("load")
def test_a_sandbox_with_much_memory_gets_no_automatic_point_at_once_and_history_says_why(
    make_sandbox: MakeOne,
) -> None:
    sandbox = make_sandbox()
    value(sandbox, "data = bytearray(b'x' * (400 << 20)); len(data)")
    wait_until(lambda: sandbox.history().taking == "suspended", "the engine has weighed it")
    found = sandbox.history()
    assert "MiB of memory" in found.note
    assert "history=N" in found.note
    assert not found[-1].kept
    asked = make_sandbox(history=2)
    value(asked, "data = bytearray(b'x' * (400 << 20)); len(data)")
    value(asked, "data[0] = 0")
    asked.undo()
    assert value(asked, "data[0]") == str(ord("x"))


def test_points_count_in_no_quota_and_end_with_their_sandbox(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=50)
    for number in range(30):
        value(sandbox, f"x = {number}")
    before = sandbox.info().usage["points"]
    assert before >= 29
    sandbox.close()


@pytest.mark.deep("load")
@pytest.mark.parametrize("history", [5, None])
def test_undo_does_not_take_back_what_a_thread_did_before_the_cell(make_sandbox: MakeOne, history: int | None) -> None:
    sandbox = make_sandbox(history=history)
    value(
        sandbox,
        "import threading, time\ncount = 0\n"
        "def work():\n    global count\n    while True: count += 1; time.sleep(0.001)\n"
        "threading.Thread(target=work, daemon=True).start()",
    )
    wait_until(lambda: sandbox.history()[-1].kept, "the state is kept in the idle moment")
    time.sleep(1.5)  # in which the thread counts
    before = int(value(sandbox, "before = count; before") or 0)
    sandbox.undo()
    assert int(value(sandbox, "count") or 0) > before / 2


def test_undo_while_a_thread_works_and_children_run(make_sandbox: MakeOne) -> None:
    sandbox = make_sandbox(history=5)
    value(
        sandbox,
        "import subprocess, threading\ncount = 0\n"
        "def work():\n    global count\n    while True: count += 1\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "child = subprocess.Popen(['sleep', '1000'])",
    )
    value(sandbox, "y = 1")
    sandbox.undo()
    assert value(sandbox, "'y' in globals(), threading.active_count()") == "(False, 2)"
    assert value(sandbox, "before = count\nwhile count == before: pass\ntrue = count > before; true") == "True"
