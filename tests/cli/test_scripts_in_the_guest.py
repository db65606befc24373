"""The part of `ramet run` that is inside the walls: how scripts begin and end there, in every Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet import Sandbox
from ramet.cli.local.script import RunScript
from tests.pythons import VERSIONS, python_of


def script(source: str, name: str = "bug.py") -> RunScript:
    return RunScript("python", name, source.encode(), [name], f"/root/{name}")


@pytest.mark.deep("load")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_script_fails_and_ends_the_same_in_every_python(version: str, tmp_path: Path) -> None:
    failing = script(
        "import atexit, concurrent.futures, threading\n"
        "atexit.register(print, 'exit function')\n"
        "concurrent.futures.ThreadPoolExecutor().submit(int)\n"
        "threading.Timer(0.1, print, ['thread']).start()\n"
        "1 / 0\n"
    )
    with Sandbox(python=python_of(version, tmp_path / "environment")) as sandbox:
        failing.upload(sandbox)
        result = sandbox.run_code(failing.cell(None, final=True))
        broken = script("print('\0')")
        broken.upload(sandbox)
        refused = sandbox.run_code(broken.cell(None, final=False))
    assert (result.exit_code, result.stdout) == (1, "thread\nexit function\n")
    assert result.stderr.splitlines()[:3] == [
        "Traceback (most recent call last):",
        '  File "bug.py", line 5, in <module>',
        "    1 / 0",
    ]
    assert result.error is not None
    assert result.error.name == "ZeroDivisionError"
    assert refused.exit_code == 1
    assert "a NUL character cannot be part of code" in refused.stderr
    assert "<cell" not in refused.stderr


def test_threads_that_never_end_end_with_the_timeout(sandbox: Sandbox) -> None:
    endless = script("import threading\nthreading.Thread(target=threading.Event().wait).start()\n")
    endless.upload(sandbox)
    result = sandbox.run_code(endless.cell(None, final=True), timeout=1)
    assert (result.cause, result.exit_code, result.stderr) == ("timeout", 130, "")
    assert sandbox.run_code("6 * 7").value == "42"


def test_an_exception_of_the_script_itself_that_looks_like_an_interrupt_is_shown(sandbox: Sandbox) -> None:
    own = script("raise KeyboardInterrupt('mine')\n")
    own.upload(sandbox)
    result = sandbox.run_code(own.cell(None, final=False))
    assert result.exit_code == 130
    assert result.stderr.endswith("KeyboardInterrupt: mine\n")


def test_a_loop_that_swallows_interrupts_is_stopped_quietly(sandbox: Sandbox) -> None:
    stubborn = script("while True:\n    try:\n        while True: pass\n    except KeyboardInterrupt: pass\n")
    stubborn.upload(sandbox)
    result = sandbox.run_code(stubborn.cell(None, final=True), timeout=1)
    assert (result.cause, result.state) == ("timeout", "kept")
    assert "Traceback" not in result.stderr
    assert sandbox.run_code("6 * 7").value == "42"


def test_names_of_a_script_stay_for_later_cells_and_forks(sandbox: Sandbox) -> None:
    defining = script("def f():\n    return 1 / 0\nx = 41\n", "defines.py")
    defining.upload(sandbox)
    sandbox.run_code(defining.cell(None, final=False))
    with sandbox.fork() as children:
        assert children[0].run_code("x + 1, __file__").value == "(42, '/root/defines.py')"
        told = children[0].run_code("f()").stderr
    assert '  File "defines.py", line 2, in f\n    return 1 / 0\n' in told
