"""`ramet run script.py` runs a script as Python here would: its file, its name, its neighbours, its input, its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet import Sandbox
from tests.cli.commands import COMMAND, WAIT_SECONDS, environment, ramet
from tests.server.running import Server

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`ramet run` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **more: ramet("run", *arguments, url=server.url, **more)


@pytest.fixture(params=["embedded", "server"])
def run_anywhere(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same, at a server and with a sandbox of its own."""
    monkeypatch.chdir(tmp_path)
    url = request.getfixturevalue("server").url if request.param == "server" else None
    return lambda *arguments, **more: ramet("run", *arguments, url=url, **more)


def here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same as this machine's Python does it."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, input="")


@pytest.mark.parametrize(
    "source",
    [
        b'\xef\xbb\xbfprint("ok")\r\nprint(2)\r\n',
        b'# -*- coding: latin-1 -*-\nprint("h\xe9")\n',
        b"#!/usr/bin/env python\nfrom __future__ import annotations\nprint(__name__)\n1 + 1\n",
        b'print("first")\nif True:\n',
        b"def f(:\n    pass\n",
        b'import sys\nsys.exit("bye")\n',
    ],
)
def test_a_file_is_read_as_python_reads_it(run: Run, tmp_path: Path, source: bytes) -> None:
    (tmp_path / "script.py").write_bytes(source)
    expected, done = here("script.py"), run("script.py")
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert done.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


def test_bytes_in_no_encoding_are_a_syntax_error_of_the_script(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_bytes(b'print("caf\xe9")\n')
    done = run("script.py")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("SyntaxError: (unicode error) 'utf-8' codec can't decode byte 0xe9")


def test_tracebacks_show_the_script_under_its_name_and_nothing_of_ours(run_anywhere: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "bug.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    lines = run_anywhere("sub/bug.py").stderr.splitlines()
    assert [line for line in lines if line.startswith("  File")] == [
        '  File "sub/bug.py", line 4, in <module>',
        '  File "sub/bug.py", line 2, in f',
    ]
    assert "    return 1 / 0" in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_traceback_of_an_awaiting_script_begins_with_the_script(run: Run, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import asyncio\nawait asyncio.sleep(0)\nraise ValueError('late')\n")
    lines = run("waits.py").stderr.splitlines()
    assert lines[1] == '  File "waits.py", line 3, in <module>'
    assert lines[-1] == "ValueError: late"


def test_the_script_knows_its_file_and_its_arguments(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("beside")
    (tmp_path / "script.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        "print(sys.argv, (Path(__file__).parent / 'data.txt').read_text(), Path(__file__).name)\n"
    )
    done = run("--upload", "data.txt", "script.py", "--json", "ä")
    assert done.stdout == "['script.py', '--json', 'ä'] beside script.py\n", done.stderr


def test_modules_beside_the_script_can_be_imported_and_nothing_else_is_there(run_anywhere: Run, tmp_path: Path) -> None:
    (tmp_path / "package" / "deep").mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "deep" / "module.py").write_text(
        "import second\nwords = open(__file__[:-9] + 'words.txt').read()\n"
    )
    (tmp_path / "package" / "deep" / "words.txt").write_text("words")
    (tmp_path / "helper.py").write_text("value = 1")
    (tmp_path / "second.py").write_text("value = 2")
    (tmp_path / "unrelated.py").write_text("PASSWORD = 'hidden'")
    (tmp_path / "keys.txt").write_text("secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "target.py").write_text("stolen = 1")
    (tmp_path / "linked.py").symlink_to(tmp_path / "elsewhere" / "target.py")
    (tmp_path / "script.py").write_text(
        "import os, helper\nfrom package.deep import module\n"
        "print(helper.value, module.second.value, module.words)\n"
        "print(sorted(name for name in os.listdir() if name[0] not in '._'))\n"
        "import linked\n"
    )
    done = run_anywhere("script.py")
    assert done.stdout.splitlines() == ["1 2 words", "['helper.py', 'package', 'script.py', 'second.py']"]
    assert "No module named 'linked'" in done.stderr
    assert "No module named 'helper'" in run_anywhere("--alone", "script.py").stderr


def test_too_much_beside_a_script_is_refused_before_anything_is_copied(run: Run, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    with open(tmp_path / "package" / "huge.bin", "wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "script.py").write_text("import package")
    done = run("script.py")
    assert done.returncode == 125
    assert "--alone" in done.stderr


def test_standard_input_reaches_python_its_children_and_bash(run: Run, tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(
        "import subprocess, sys\nprint(input())\nprint(sys.stdin.readline().strip(), flush=True)\n"
    )
    assert run("reads.py", given="first\nsecond\n").stdout == "first\nsecond\n"
    assert run("-c", "import subprocess; _ = subprocess.run('cat')", given="for a child").stdout == "for a child"
    assert run("--language", "bash", "-c", "read line; echo $line; exit 3", given="a line\n").stdout == "a line\n"
    assert run("-c", "import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_much_standard_input_arrives_whole(run_anywhere: Run) -> None:
    given = "".join(f"{number}\n" for number in range(700_000))
    done = run_anywhere("-c", "import sys; lines = sys.stdin.read().split(); print(len(lines), lines[-1])", given=given)
    assert done.stdout == "700000 699999\n", done.stderr


def test_a_script_does_not_wait_for_input_that_it_does_not_read(run: Run) -> None:
    read_end, write_end = os.pipe()
    try:
        done = subprocess.run(
            [*COMMAND, "run", "-c", "print('done')"],
            stdin=read_end,
            capture_output=True,
            timeout=WAIT_SECONDS,
            check=False,
            env=environment(),
        )
    finally:
        os.close(read_end)
        os.close(write_end)
    assert done.stdout == b"done\n"


def test_threads_are_waited_for_and_exit_functions_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import atexit, sys, threading, concurrent.futures\n"
        "atexit.register(print, 'exit function')\n"
        "gate = threading.Event()\n"
        "threading.Thread(target=lambda: (gate.wait(), print('thread'))).start()\n"
        "concurrent.futures.ThreadPoolExecutor().submit(int)\n"
        "threading.Timer(0.2, gate.set).start()\n"
        "print('main')\n"
        "sys.exit(3)\n"
    )
    done = run("script.py")
    assert (done.returncode, done.stdout) == (3, "main\nthread\nexit function\n")


def test_a_script_runs_again_with_its_modules_as_they_are_now(server: Server, kept: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import helper\nx = helper.value\n")
    for value in (1, 22):
        (tmp_path / "helper.py").write_text(f"value = {value}\n")
        done = ramet("run", "--sandbox", kept.id, str(tmp_path / "script.py"), url=server.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert kept.run_code("x").value == str(value)


def test_one_command_is_one_cell_in_the_log(server: Server) -> None:
    sandbox_id = ramet("run", "--keep", "-c", "print(1)", "argument", url=server.url).stderr.split()[-1]
    events = [json.loads(line) for line in ramet("logs", "--json", sandbox_id, url=server.url).stdout.splitlines()]
    assert [event["type"] for event in events] == ["stdout", "exit"]
    assert len({event["execution"] for event in events}) == 1
    assert ramet("rm", sandbox_id, url=server.url).returncode == 0
