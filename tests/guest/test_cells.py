from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.guest_driver import Guest


def test_names_functions_and_imports_persist_between_cells(guest: Guest) -> None:
    guest.run("import math\nx = 2\ndef double(n):\n    return 2 * n")
    assert guest.run("print(double(x), math.floor(2.5))").stdout == "4 2\n"


def test_objects_of_cells_can_be_pickled(guest: Guest) -> None:
    guest.run("import pickle\nclass Point:\n    def __init__(self, x): self.x = x\ndef f(): return 7")
    assert guest.run("pickle.loads(pickle.dumps(Point(5))).x, pickle.loads(pickle.dumps(f))()").value == "(5, 7)"


def test_cells_live_in_main(guest: Guest) -> None:
    assert guest.run("import __main__\n__main__.__dict__ is globals(), __name__").value == "(True, '__main__')"


def test_a_fresh_namespace_shows_no_guest_names(guest: Guest) -> None:
    assert guest.run("sorted(n for n in dir() if not n.startswith('_'))").value == "[]"


def test_indented_code_runs_with_its_own_line_numbers(guest: Guest) -> None:
    outcome = guest.run("\n        x = 1\n        if x:\n            1 / 0\n")
    assert 'File "<cell 1>", line 4, in <module>\n    1 / 0\n' in outcome.stderr


def test_a_syntax_error_runs_nothing(guest: Guest) -> None:
    outcome = guest.run("print('ran')\nreturn 5")
    assert (outcome.stdout, outcome.exit_code) == ("", 1)
    assert 'File "<cell 1>", line 2\n    return 5\n' in outcome.stderr
    assert outcome.stderr.endswith("SyntaxError: 'return' outside function\n")


def test_an_exception_shows_only_the_users_frames(guest: Guest) -> None:
    guest.run("def f(a):\n    return a / 0")
    outcome = guest.run("x = 1\nf(x)")
    assert outcome.exit_code == 1
    assert outcome.error == {"name": "ZeroDivisionError", "message": "division by zero"}
    files = [line.split('"')[1] for line in outcome.stderr.splitlines() if line.startswith("  File")]
    assert files == ["<cell 2>", "<cell 1>"]
    assert "    f(x)\n" in outcome.stderr
    assert "    return a / 0\n" in outcome.stderr
    assert guest.run("x").value == "1"


def test_a_chain_of_exceptions_shows_only_the_users_frames(guest: Guest) -> None:
    outcome = guest.run("try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e")
    assert "ramet_guest" not in outcome.stderr
    assert "direct cause" in outcome.stderr
    assert "KeyError: 'a'" in outcome.stderr


@pytest.mark.parametrize(
    ("statement", "code", "stderr"),
    [
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("exit(4)", 4, ""),
        ("raise SystemExit(256 + 7)", 7, ""),
        ("raise SystemExit('went wrong')", 1, "went wrong\n"),
    ],
)
def test_system_exit_sets_the_exit_code(guest: Guest, statement: str, code: int, stderr: str) -> None:
    outcome = guest.run(statement)
    assert (outcome.exit_code, outcome.stderr) == (code, stderr)
    assert guest.run("print('alive')").stdout == "alive\n"


@pytest.mark.parametrize(
    "statement",
    [
        "def f(): f()\nf()",
        "raise MemoryError",
        "bytearray(1 << 62)",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
        "class E(BaseException):\n    def __str__(self): raise RuntimeError('no')\nraise E",
        "import sys; sys.setrecursionlimit(60)\n1/0",
        "import builtins\nfor n in list(vars(builtins)):\n    if n != '__build_class__': delattr(builtins, n)",
        "import sys; sys.settrace(lambda *a: 1 / 0)",
        "import sys; sys.setprofile(lambda *a: 1 / 0)",
        "import sys; del sys.displayhook, sys.stdout, sys.stderr\n5",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)",
        "import json, linecache, traceback, os\n"
        "json.dumps = linecache.getline = traceback.walk_tb = os.getpid = None\n1/0",
    ],
)
def test_the_repl_survives(guest: Guest, statement: str) -> None:
    guest.run("kept = 1")
    outcome = guest.run(statement)
    assert outcome.death is None
    assert guest.run("print('alive', kept)").stdout == "alive 1\n"


def test_deleted_builtins_are_put_back(guest: Guest) -> None:
    assert guest.run("import builtins; del builtins.len").exit_code == 0
    assert guest.run("len('abc')").value == "3"


def test_top_level_await_and_asyncio_run_work(guest: Guest) -> None:
    assert guest.run("import asyncio\nawait asyncio.sleep(0, 5)").value == "5"
    assert guest.run("asyncio.run(asyncio.sleep(0, 6))").value == "6"
    assert guest.run("await asyncio.sleep(0)\nasyncio.run(asyncio.sleep(0, 7))").value == "7"
    assert (
        guest.run("async def f():\n    return 8\nloop = asyncio.new_event_loop()\nloop.run_until_complete(f())").value
        == "8"
    )


def test_a_task_goes_on_between_cells(guest: Guest, tmp_path: Path) -> None:
    guest.run(
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    print('task')\nt = asyncio.create_task(f())"
    )
    guest.wait_for_stdout("task")
    assert guest.run("t.done()").value == "True"


def test_an_exception_in_an_awaiting_cell_shows_only_its_frames(guest: Guest) -> None:
    outcome = guest.run("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    1 / 0\nawait f()")
    files = [line.split('"')[1] for line in outcome.stderr.splitlines() if line.startswith("  File")]
    assert files == ["<cell 1>", "<cell 1>"]


def test_notebook_habits_work(guest: Guest) -> None:
    assert guest.run("!echo shell").stdout == "shell\n"
    assert guest.run("name = 'x'\n!echo {name} $name").stdout == "x x\n"
    assert "per loop" in guest.run("%timeit -n 1 -r 1 pass").stdout
    assert guest.run("lines = !echo a; echo b\nlines").value == "['a', 'b']"
    assert guest.run("%%time\n1/0").exit_code == 1
    assert guest.run("%%capture seen\nprint('hidden')").stdout == ""
    assert guest.run("seen.stdout").value == "'hidden\\n'"
    assert guest.run("%cd /").exit_code == 0
    assert guest.run("pwd").value == "'/'"
    assert "Docstring" in guest.run("len?").stdout
    assert guest.run("%no_such_magic").exit_code == 1


def test_bash_magics_report_failure(guest: Guest) -> None:
    outcome = guest.run("%%bash\necho out\nexit 3")
    assert (outcome.stdout, outcome.exit_code) == ("out\n", 3)


def test_input_ends_at_once(guest: Guest) -> None:
    assert guest.run("input('name? ')").error == {"name": "EOFError", "message": "EOF when reading a line"}
    assert guest.run("import sys; sys.stdin.read()").value == "''"


def test_source_of_functions_and_classes_is_found(guest: Guest) -> None:
    guest.run("class A:\n    def method(self):\n        pass\ndef f():\n    return 1")
    outcome = guest.run("import inspect\nprint(inspect.getsource(f) + inspect.getsource(A), end='')")
    assert outcome.stdout == "def f():\n    return 1\nclass A:\n    def method(self):\n        pass\n"


def test_future_imports_hold_in_later_cells(guest: Guest) -> None:
    guest.run("from __future__ import annotations")
    assert guest.run("def f(a: no_such_name): pass\nf.__annotations__").value == "{'a': 'no_such_name'}"


def test_environment_and_folder_are_passed_as_data(start_guest: Callable[..., Guest], tmp_path: Path) -> None:
    guest = start_guest(cwd=None)
    awkward = "a'b\"c$(id)\n\udcff\u20ac"
    assert guest.configure(env={"AWKWARD": awkward}, cwd=str(tmp_path)) is None
    assert guest.run(f"import os\nos.environ['AWKWARD'] == {awkward!r}, os.getcwd()").value == f"(True, '{tmp_path}')"
    assert "No such file" in str(guest.configure(cwd="/no/such/folder"))


def test_a_copy_of_the_repl_made_by_fork_does_not_answer(guest: Guest) -> None:
    outcome = guest.run(
        "import os\npid = os.fork()\nif pid: print(os.waitpid(pid, 0)[1] >> 8)\nelse: raise SystemExit(9)"
    )
    assert (outcome.stdout, outcome.exit_code) == ("9\n", 0)
    outcome = guest.run("import ctypes\npid = ctypes.CDLL(None).fork()\nprint('parent' if pid else 'child')")
    assert outcome.exit_code == 0
    assert guest.run("os.waitpid(pid, 0)[1]").value == "0"


def test_a_large_cell_arrives_whole(guest: Guest) -> None:
    text = "x" * (5 << 20)
    assert guest.run(f"t = '{text}'\nlen(t)").value == str(5 << 20)


def test_a_users_signal_handler_that_raises_between_cells_breaks_nothing(guest: Guest) -> None:
    guest.run(
        "import signal, os\ndef handler(*a): raise TimeoutError('late')\nsignal.signal(signal.SIGUSR1, handler)\n"
    )
    import signal

    guest.signal(signal.SIGUSR1)
    assert guest.run("print('alive')").stdout == "alive\n"


def test_the_first_cell_of_a_warmed_up_template_is_cell_one(start_guest: Callable[..., Guest]) -> None:
    guest = start_guest(warm_up=True, builtin=True)
    outcome = guest.run("print(sorted(n for n in dir() if not n.startswith('__')))\nundefined")
    assert 'File "<cell 1>", line 2' in outcome.stderr
    assert outcome.stdout == "['_', '_dh', '_ih', '_oh']\n"
    assert guest.run("import gc; gc.collect(); print('ok')").stdout == "ok\n"


def test_the_guest_ends_when_the_engine_leaves(guest: Guest) -> None:
    import socket

    guest.control.shutdown(socket.SHUT_RDWR)
    assert guest.wait() == 0
