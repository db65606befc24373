"""Cells as the guest runs them; what a user sees of them is in tests/behaviour/test_cells.py, test_exceptions.py."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.guest_driver import PREFIX, RUN, Guest


def test_a_fresh_namespace_shows_no_guest_names(guest: Guest) -> None:
    assert guest.run("sorted(n for n in dir() if not n.startswith('_'))").value == "['In', 'Out']"


@pytest.mark.parametrize(
    "statement",
    [
        "class E(BaseException):\n    def __str__(self): raise RuntimeError('no')\nraise E",
        "import sys; sys.setrecursionlimit(60)\n1/0",
        "import builtins\nfor n in list(vars(builtins)):\n    if n != '__build_class__': delattr(builtins, n)",
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
    assert guest.run(f"import os\nos.environ['AWKWARD'] == {awkward!r}").value == "True"
    assert guest.run("print(os.getcwd())").stdout == f"{tmp_path}\n"
    assert "No such file" in str(guest.configure(cwd="/no/such/folder"))


def test_a_copy_of_the_repl_made_by_fork_does_not_answer(guest: Guest) -> None:
    outcome = guest.run(
        "import os\npid = os.fork()\nif pid: print(os.waitpid(pid, 0)[1] >> 8)\nelse: raise SystemExit(9)"
    )
    assert (outcome.stdout, outcome.exit_code) == ("9\n", 0)
    outcome = guest.run("import ctypes\npid = ctypes.CDLL(None).fork()\nprint('parent' if pid else 'child')")
    assert outcome.exit_code == 0
    assert guest.run("os.waitpid(pid, 0)[1]").value == "0"


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
    assert outcome.stdout == "['In', 'Out', '_', '_dh', '_i', '_i1', '_ih', '_ii', '_iii', '_oh']\n"
    assert guest.run("import gc; gc.collect(); print('ok')").stdout == "ok\n"


@pytest.mark.parametrize(
    "prefix",
    [PREFIX.pack(65 << 20, 1, RUN, 2), PREFIX.pack(8, 1, RUN, 3), PREFIX.pack(8, 2, RUN, 2)],
    ids=["too long", "a header longer than the frame", "another version"],
)
def test_what_is_no_frame_ends_the_guest(guest: Guest, prefix: bytes) -> None:
    """By its first bytes: nobody waits for the rest of it."""
    guest.control.sendall(prefix)
    guest.control.shutdown(socket.SHUT_WR)
    assert guest.wait() == 1


def test_the_guest_ends_when_the_engine_leaves(guest: Guest) -> None:
    guest.control.shutdown(socket.SHUT_RDWR)
    assert guest.wait() == 0


@pytest.mark.parametrize("code", ["fail()", "try:\n    fail()\nexcept Bad:\n    fail()"])
def test_what_a_failed_function_held_is_freed_by_the_next_error(guest: Guest, code: str) -> None:
    """At once, and not when garbage is collected: a table of gigabytes would stay till then, and CPython 3.12 crashes
    when a view into an io.BytesIO is among the garbage."""
    guest.run(
        "import gc; gc.disable()\nclass Held:\n    def __del__(self): print('freed')\n"
        "class Bad(Exception): pass\ndef fail():\n    held = Held()\n    raise Bad"
    )
    assert guest.run(code).error == {"name": "Bad", "message": ""}
    assert "freed" not in guest.run("gc.collect()").stdout
    assert "freed" in guest.run("1/0").stdout
    assert "freed" not in guest.run("gc.collect()").stdout


def test_what_a_function_held_that_ran_out_of_memory_is_freed_with_its_cell(guest: Guest) -> None:
    guest.run(
        "class Held:\n    def __del__(self): print('freed')\ndef fail():\n    held = Held()\n    raise MemoryError"
    )
    outcome = guest.run("fail()")
    assert (outcome.stdout, outcome.error) == ("freed\n", {"name": "MemoryError", "message": ""})


def test_what_runs_scripts_is_loaded_before_its_file_can_be_replaced(guest: Guest) -> None:
    assert guest.run("'ramet_guest.processes.scripts' in __import__('sys').modules").value == "True"
