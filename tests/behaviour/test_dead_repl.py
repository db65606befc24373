"""A REPL that dies is a result; the next cell runs in a fresh one of the same sandbox and says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ramet import Sandbox
from tests.behaviour.deaths import DEATHS
from tests.behaviour.faces import AnySandbox, MakeSandbox
from tests.behaviour.waiting import AFTER_GO, go, wait_until


@pytest.fixture
def any_sandbox(make_any_sandbox: MakeSandbox) -> AnySandbox:
    return make_any_sandbox(recover="fresh")


@pytest.mark.promise("survive-repl")
@pytest.mark.parametrize(("code", "exit_code", "cause"), DEATHS)
def test_a_death_is_a_result_and_the_next_cell_says_restarted(
    any_sandbox: AnySandbox, code: str, exit_code: int, cause: str
) -> None:
    any_sandbox.run_code("kept = 1\nopen('/root/file', 'w').write('files stay')")
    lost = any_sandbox.run_code(code, timeout=60)
    assert (lost.state, lost.exit_code, lost.cause) == ("lost", exit_code, cause)
    assert (lost.stdout, lost.ok, lost.interrupted, lost.restarted) == ("last words\n", False, False, False)
    fresh = any_sandbox.run_code("'kept' in globals(), open('/root/file').read()")
    assert (fresh.value, fresh.restarted, fresh.state) == ("(False, 'files stay')", True, "kept")
    assert any_sandbox.run_code("1").restarted is False


def test_out_of_memory_is_a_cause_of_its_own(make_any_sandbox: MakeSandbox) -> None:
    small = make_any_sandbox(memory_mib=128, recover="fresh")
    small.files.write("/root/file", b"kept")
    lost = small.run_code("print('last words', flush=True)\nblocks = []\nwhile True: blocks.append(bytearray(1 << 20))")
    if "cgroup" not in str(small.info().walls["memory"]):
        assert lost.error is not None
        assert lost.error.name == "MemoryError"
        return
    assert (lost.state, lost.cause, lost.exit_code, lost.stdout) == ("lost", "out of memory", 137, "last words\n")
    fresh = small.run_code("open('/root/file').read()")
    assert (fresh.value, fresh.restarted) == ("'kept'", True)
    assert small.run_code("x = bytearray(30 << 20)").ok


def test_a_death_in_bash_of_the_repl_is_told_too(any_sandbox: AnySandbox) -> None:
    lost = any_sandbox.run_code("kill -9 $PPID; sleep 60", language="bash", timeout=60)
    assert (lost.state, lost.cause) == ("lost", "signal 9")
    assert any_sandbox.run_code("1").restarted


@pytest.mark.every_face
def test_a_death_during_a_stream_is_its_exit_event(any_sandbox: AnySandbox) -> None:
    events = list(any_sandbox.run_code_stream("import os\nprint('last words')\nos._exit(4)"))
    last = events[-1]
    assert last.type == "exit"
    assert (last.code, last.result.state, last.result.cause) == (4, "lost", "exit")
    assert "".join(event.data for event in events if event.type == "stdout") == "last words\n"


@pytest.mark.every_face
def test_a_repl_that_dies_between_cells_is_told_by_the_next_result(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code(AFTER_GO + "after_go(lambda: os._exit(5))")
    go(any_sandbox)
    wait_until(lambda: any_sandbox.info().state == "lost", "the REPL died between cells")
    assert any_sandbox.run_code("1").restarted is True


@pytest.mark.every_face
def test_env_and_cwd_are_there_again_after_a_death(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(env={"WORD": "given"}, cwd="/tmp", recover="fresh")
    sandbox.run_code("import os; os.environ['WORD'] = 'changed'; os.chdir('/'); os._exit(1)")
    assert sandbox.run_code("import os; (os.environ['WORD'], os.getcwd())").value == "('given', '/tmp')"


def test_mounts_are_there_after_a_death(make_sandbox: Callable[..., Sandbox], tmp_path: object) -> None:
    sandbox = make_sandbox(mounts={"/data": str(tmp_path)})
    sandbox.run_code("import os; os._exit(1)")
    assert sandbox.run_code("import os; os.listdir('/data')").value == "[]"


def test_other_processes_of_the_sandbox_end_with_the_repl(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)")
    assert any_sandbox.run_code("pgrep -c sleep", language="bash").stdout == "1\n"
    any_sandbox.run_code("import os; os._exit(1)")
    assert any_sandbox.run_code("pgrep -c sleep || true", language="bash").stdout == "0\n"


def test_a_repl_can_die_many_times(any_sandbox: AnySandbox) -> None:
    for number in range(10):
        result = any_sandbox.run_code(f"import os; os._exit({number})")
        assert (result.exit_code, result.state, result.restarted) == (number, "lost", number > 0)
    assert any_sandbox.run_code("6 * 7").value == "42"


@pytest.mark.promise("survive-neighbour")
def test_a_neighbour_notices_nothing_of_a_death(any_sandbox: AnySandbox, sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1")
    any_sandbox.run_code("import os; os._exit(1)")
    result = sandbox.run_code("x")
    assert (result.value, result.restarted) == ("1", False)


def test_a_program_in_the_place_of_the_repl_that_ends_at_the_deadline_timed_out(any_sandbox: AnySandbox) -> None:
    """The interrupt's own signal is not the cause of the end."""
    lost = any_sandbox.run_code("import os; os.execv('/bin/sleep', ['sleep', '600'])", timeout=0.3)
    assert (lost.state, lost.cause, lost.interrupted) == ("lost", "timeout", True)
    assert any_sandbox.run_code("1").restarted is True


def test_a_non_blocking_control_socket_changes_nothing(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import os; os.set_blocking(1000, False); kept = 1")
    assert any_sandbox.run_code("kept").value == "1"
    assert any_sandbox.run_code("kept").value == "1"


def test_info_is_answered_while_the_repl_dies_again_and_again(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(1) as threads:
        for _ in range(15):
            looked = threads.submit(lambda: [sandbox.info().id for _ in range(10)])
            assert sandbox.run_code("import os; os.kill(os.getpid(), 9)").state == "lost"
            assert set(looked.result(30)) == {sandbox.id}


GONE = "variables, imports, threads and open files are gone; files in the sandbox are kept."


@pytest.mark.every_face
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os._exit(3)", "it exited with code 3"),
        ("import ctypes; ctypes.string_at(0)", "signal 11 (SIGSEGV) killed it"),
        ("import os; os.kill(os.getpid(), 63)", "signal 63 killed it"),
        ("import os; os.write(1000, b'x' * 100)", "it broke the protocol of its control socket (descriptor 1000)"),
    ],
)
def test_the_result_says_in_words_what_ended_what_is_gone_and_what_is_kept(
    any_sandbox: AnySandbox, code: str, why: str
) -> None:
    lost = any_sandbox.run_code(f"import sys; _ = sys.stderr.write('half a line'); {code}", timeout=60)
    assert lost.error is not None
    assert lost.error.name == "PythonEnded"
    assert lost.error.message.startswith("the sandbox's Python ended: ")
    assert why in lost.error.message
    assert f"Its {GONE}" in lost.error.message
    assert lost.stderr == f"half a line\nramet: {lost.error.message}\n"
    fresh = any_sandbox.run_code("import sys; print('here', file=sys.stderr)")
    assert (fresh.ok, fresh.error, fresh.restarted) == (True, None, True)
    note, text = fresh.stderr.splitlines()
    assert note.startswith("ramet: this cell started in a fresh Python, because the one before had ended: ")
    assert why in note
    assert GONE in note
    assert text == "here"
    assert any_sandbox.run_code("1").stderr == ""


@pytest.mark.every_face
def test_a_stream_has_the_same_words(any_sandbox: AnySandbox) -> None:
    *events, last = any_sandbox.run_code_stream("import os; os._exit(4)")
    assert last.type == "exit"
    assert last.result.error is not None
    printed = "".join(event.data for event in events if event.type == "stderr")
    assert printed == f"ramet: {last.result.error.message}\n"
    *events, last = any_sandbox.run_code_stream("1")
    assert "ramet: this cell started in a fresh Python" in [e for e in events if e.type == "stderr"][0].data
    assert [event.type for event in any_sandbox.run_code_stream("1")] == ["result", "exit"]


@pytest.mark.deep("load")
def test_a_deadline_that_costs_the_repl_says_so(any_sandbox: AnySandbox) -> None:
    lost = any_sandbox.run_code("sum(range(10**15))", timeout=0.2)
    assert (lost.state, lost.cause) == ("lost", "timeout")
    assert "Python ended: the deadline of the cell passed, and it had to be killed." in lost.stderr


def test_a_death_that_no_result_told_of_is_told_with_its_reason(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code(AFTER_GO + "after_go(lambda: os._exit(5))")
    go(any_sandbox)
    wait_until(lambda: any_sandbox.info().state == "lost", "the REPL died between cells")
    assert "had ended: it exited with code 5." in any_sandbox.run_code("1").stderr


def test_a_child_of_a_repl_that_was_started_again_says_so_too(sandbox: Sandbox) -> None:
    sandbox.run_code("import os; os._exit(6)")
    with sandbox.fork()[0] as child:
        assert "had ended: it exited with code 6." in child.run_code("1").stderr
