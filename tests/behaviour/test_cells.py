"""One long-lived Python process per sandbox: what stays between cells, and which code runs."""

from __future__ import annotations

import sys

import pytest

from tests.behaviour.faces import AnySandbox, MakeSandbox
from tests.behaviour.waiting import wait_until


def test_cells_run_in_one_process_in_the_interpreter_that_runs_ramet(any_sandbox: AnySandbox) -> None:
    first = any_sandbox.run_code("import os, sys; (os.getpid(), sys.version, sys.executable)").value
    assert first == any_sandbox.run_code("(os.getpid(), sys.version, sys.executable)").value
    assert any_sandbox.run_code("print(sys.version)").stdout == sys.version + "\n"


def test_cells_share_the_namespace_of_main(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("x = 1")
    assert any_sandbox.run_code("import __main__; (x, __name__, __main__.x, globals() is vars(__main__))").value == (
        "(1, '__main__', 1, True)"
    )


@pytest.mark.promise("repl-names")
def test_names_modules_functions_and_classes_persist(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import json as j\ndef double(n):\n    return 2 * n\nclass Box:\n    size = 3")
    assert any_sandbox.run_code("j.dumps([double(Box.size)])").value == "'[6]'"


def test_functions_and_classes_of_cells_can_be_pickled(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code(
        "class Point:\n    def __init__(self, x):\n        self.x = x\ndef twice(n):\n    return 2 * n"
    )
    any_sandbox.run_code("import pickle; kept = pickle.dumps((Point(4), twice))")
    assert any_sandbox.run_code("point, function = pickle.loads(kept); (point.x, function(5))").value == "(4, 10)"


def test_functions_of_cells_run_in_a_forked_process_pool(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("def square(n):\n    return n * n")
    code = """
        import multiprocessing, warnings
        warnings.simplefilter("ignore")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            squares = pool.map(square, range(4))
        squares
    """
    assert any_sandbox.run_code(code, timeout=60).value == "[0, 1, 4, 9]"


def test_open_files_persist(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("f = open('/root/log', 'w+'); f.write('one ')")
    any_sandbox.run_code("f.write('two'); f.flush(); f.seek(0)")
    assert any_sandbox.run_code("f.read()").value == "'one two'"


def test_sockets_persist(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code(
        "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\nthere, _ = server.accept()"
    )
    any_sandbox.run_code("client.sendall(b'hello')")
    assert any_sandbox.run_code("there.recv(5)").value == "b'hello'"


@pytest.mark.promise("repl-threads")
def test_threads_persist_and_run_between_cells(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code(
        "import threading, os, time\nasked = threading.Event()\n"
        "def work():\n    asked.wait()\n    open('/root/done', 'w').close()\n"
        "thread = threading.Thread(target=work, daemon=True)\nthread.start()"
    )
    assert any_sandbox.run_code("thread.is_alive()").value == "True"
    any_sandbox.run_code("asked.set()")
    wait_until(lambda: any_sandbox.files.exists("/root/done"), "the thread went on between cells")
    assert any_sandbox.run_code("thread.join(30); thread.is_alive()").value == "False"


def test_popen_children_persist(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code(
        "import subprocess\nchild = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)"
    )
    assert any_sandbox.run_code("child.poll() is None").value == "True"
    assert any_sandbox.run_code("child.communicate(b'still here', timeout=30)[0], child.wait()").value == (
        "(b'still here', 0)"
    )


def test_path_environment_and_folder_persist(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import os, sys\nsys.path.append('/root/lib')\nos.environ['A'] = 'b'\nos.chdir('/tmp')")
    assert any_sandbox.run_code("('/root/lib' in sys.path, os.environ['A'], os.getcwd())").value == (
        "(True, 'b', '/tmp')"
    )


def test_modules_in_the_current_folder_can_be_imported(any_sandbox: AnySandbox) -> None:
    any_sandbox.files.write("/root/mine.py", "answer = 42")
    assert any_sandbox.run_code("import mine; mine.answer").value == "42"


def test_cells_start_in_the_home_folder(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.run_code("import os; (os.getcwd(), os.environ['HOME'])").value == "('/root', '/root')"


def test_uniformly_indented_code_runs(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("""
        total = 0
        for i in range(3):
            total += i

        text = '''a
        b'''
        total
    """)
    assert (result.value, result.stderr) == ("3", "")


def test_an_empty_cell_and_one_of_comments_do_nothing(any_sandbox: AnySandbox) -> None:
    for code in ("", "\n\n", "   ", "# only a comment", "pass"):
        result = any_sandbox.run_code(code)
        assert (result.ok, result.value, result.stdout, result.stderr) == (True, None, "", "")


def test_windows_line_ends_run(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.run_code("if True:\r\n    x = 5\r\nx\r\n").value == "5"


@pytest.mark.promise("repl-tasks")
def test_top_level_await_works(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import asyncio\nasync def later(n):\n    await asyncio.sleep(0)\n    return n")
    assert any_sandbox.run_code("x = await later(20)\nx + await later(1)").value == "21"
    assert any_sandbox.run_code("async with asyncio.timeout(30):\n    y = await later(3)\ny").value == "3"


def test_asyncio_run_works_in_any_cell(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import asyncio\nasync def later(n):\n    await asyncio.sleep(0)\n    return n")
    assert any_sandbox.run_code("asyncio.run(later(1))").value == "1"
    assert any_sandbox.run_code("await later(1)\nasyncio.run(later(2))").value == "2"
    assert any_sandbox.run_code("asyncio.run(later(3))").value == "3"
    assert any_sandbox.run_code("asyncio.new_event_loop().run_until_complete(later(4))").value == "4"


@pytest.mark.promise("repl-tasks")
def test_tasks_go_on_between_cells(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code(
        "import asyncio\nasync def work():\n    await asyncio.sleep(0.01)\n    open('/root/task', 'w').close()\n"
        "task = asyncio.create_task(work())"
    )
    wait_until(lambda: any_sandbox.files.exists("/root/task"), "the task ran between cells")
    assert any_sandbox.run_code("await task; task.done()").value == "True"


def test_shell_lines_and_magics_work(any_sandbox: AnySandbox) -> None:
    any_sandbox.files.write("/root/mine/seen.txt", b"")
    assert any_sandbox.run_code("!ls mine").stdout == "seen.txt\n"
    assert any_sandbox.run_code("names = !ls mine\nnames[0]").value == "'seen.txt'"
    assert any_sandbox.run_code("word = 'hi'\n!echo $word {word.upper()}").stdout == "hi HI\n"
    assert "per loop" in any_sandbox.run_code("%timeit -n 2 -r 1 sum(range(10))").stdout
    assert any_sandbox.run_code("%%bash\necho from bash").stdout == "from bash\n"
    assert "Prints the values to a stream" in any_sandbox.run_code("print?").stdout


def test_a_fresh_namespace_holds_no_names_of_ours(make_any_sandbox: MakeSandbox) -> None:
    names = make_any_sandbox().run_code("sorted(n for n in globals() if not n.startswith('__'))").value
    assert names is not None
    allowed = {
        "In",
        "Out",
        "_",
        "__",
        "___",
        "_i",
        "_ii",
        "_iii",
        "_i1",
        "_dh",
        "_oh",
        "_ih",
        "get_ipython",
        "exit",
        "quit",
    }
    assert set(eval(names)) <= allowed


def test_builtins_that_a_cell_deletes_do_not_break_the_next_one(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import builtins\ndel builtins.len, builtins.print")
    assert any_sandbox.run_code("print(len('four'))").stdout == "4\n"


def test_a_forked_copy_of_the_repl_does_not_answer_for_it(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import os, warnings\nwarnings.simplefilter('ignore')")
    code = "pid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint(pid > 0)"
    result = any_sandbox.run_code(code, timeout=60)
    assert sorted(result.stdout.split()) == ["False", "True"]
    assert any_sandbox.run_code("print('one answer')").stdout == "one answer\n"


def test_results_carry_the_number_of_their_cell_and_a_duration(any_sandbox: AnySandbox) -> None:
    first, second = any_sandbox.run_code("1"), any_sandbox.run_code("2")
    assert second.cell_id == first.cell_id + 1
    assert first.duration_seconds > 0


def test_os_system_gives_the_wait_status_as_in_any_python(any_sandbox: AnySandbox) -> None:
    code = "import os, threading; [os.system(c) for c in ('exit 3', 'kill -9 $$', 'true')]"
    assert any_sandbox.run_code(code).value == "[768, 9, 0]"
    any_sandbox.run_code("found = []; t = threading.Thread(target=lambda: found.append(os.system('exit 2')))")
    assert any_sandbox.run_code("t.start(); t.join(30); found").value == "[512]"
