"""Deadlines and interrupts: what each kind of cell does with them, and what the result says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from ramet import Result, Sandbox
from tests.behaviour.faces import AnySandbox, MakeSandbox
from tests.behaviour.waiting import AFTER_GO, go, wait_until, wait_until_running

# Long enough for the cell to have begun what it is to be torn out of, also on a busy machine.
SOON = 0.4

KEPT = {
    "spins in Python": "while True: pass",
    "sleeps": "import time\ntime.sleep(600)",
    "sleeps again and again": "import time\nwhile True: time.sleep(0.001)",
    "blocks in C on a lock": "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "blocks in C on a pipe": "import os\nr, w = os.pipe()\nos.read(r, 1)",
    "blocks in C on a socket": "import socket\na, b = socket.socketpair()\na.recv(1)",
    "waits for an event": "import threading\nthreading.Event().wait()",
    "waits on a queue": "import queue\nqueue.Queue().get()",
    "joins a thread": (
        "import threading, time\nt = threading.Thread(target=time.sleep, args=(3,), daemon=True)\nt.start()\nt.join()"
    ),
    "waits on a stuck await": "import asyncio\nawait asyncio.Event().wait()",
    "awaits a long sleep": "import asyncio\nawait asyncio.sleep(600)",
    "spins while awaiting": "import asyncio\nwhile True: await asyncio.sleep(0)",
    "runs asyncio.run": "import asyncio\nasyncio.run(asyncio.sleep(600))",
    "waits on a child process": "import subprocess\nsubprocess.run(['sleep', '600'])",
    "waits on a shell line": "!sleep 600",
    "waits on os.system": "import os\nos.system('sleep 600')",
}


@pytest.mark.promise("repl-timeouts")
@pytest.mark.parametrize("code", KEPT.values(), ids=KEPT.keys())
def test_at_the_deadline_such_a_cell_ends_and_keeps_its_state(any_sandbox: AnySandbox, code: str) -> None:
    any_sandbox.run_code("kept = 'here'")
    result = any_sandbox.run_code(f"print('so far', flush=True)\n{code}", timeout=SOON)
    assert result.stdout.startswith("so far\n")
    assert (result.interrupted, result.state, result.cause, result.ok) == (True, "kept", "timeout", False)
    assert result.exit_code != 0
    after = any_sandbox.run_code("kept")
    assert (after.value, after.restarted) == ("'here'", False)


STUBBORN = {
    "swallows KeyboardInterrupt": (
        "while True:\n    try:\n        time.sleep(600)\n    except KeyboardInterrupt:\n        pass"
    ),
    "swallows everything": "while True:\n    try:\n        time.sleep(0.01)\n    except BaseException:\n        pass",
    "ignores SIGINT": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(0.01)",
    "handles SIGINT": "import signal\nsignal.signal(signal.SIGINT, lambda *a: None)\nwhile True: time.sleep(0.01)",
    "awaits and swallows": (
        "import asyncio\nwhile True:\n    try:\n        await asyncio.sleep(0.01)\n"
        "    except (KeyboardInterrupt, asyncio.CancelledError):\n        pass"
    ),
}


@pytest.mark.deep("load")
@pytest.mark.skipif(sys.version_info < (3, 12), reason="3.11 raises once and then kills")
@pytest.mark.parametrize("code", STUBBORN.values(), ids=STUBBORN.keys())
def test_a_cell_that_ignores_keyboard_interrupt_ends_and_keeps_its_state(any_sandbox: AnySandbox, code: str) -> None:
    any_sandbox.run_code("kept = 'here'\nimport time")
    result = any_sandbox.run_code(f"print('so far')\n{code}", timeout=SOON)
    assert (result.stdout, result.interrupted, result.state, result.cause) == ("so far\n", True, "kept", "timeout")
    assert any_sandbox.run_code("kept").value == "'here'"
    # The next interrupt is as good as the first.
    again = any_sandbox.run_code("time.sleep(600)", timeout=SOON)
    assert (again.interrupted, again.state) == (True, "kept")


LOST = {
    "spins in C": "print('so far', flush=True)\nsum(range(10**15))",
    "spins in C in a regular expression": "print('so far', flush=True)\nimport re\nre.match(r'(a+)+$', 'a' * 64 + 'b')",
    "stops itself": "print('so far', flush=True)\nimport os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "blocks all signals": (
        "print('so far', flush=True)\nimport signal, time\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: time.sleep(0.01)"
    ),
}


@pytest.mark.parametrize("code", LOST.values(), ids=LOST.keys())
def test_a_cell_that_cannot_be_reached_is_killed_with_its_repl(make_any_sandbox: MakeSandbox, code: str) -> None:
    any_sandbox = make_any_sandbox(recover="fresh")
    any_sandbox.run_code("kept = 1\nopen('/root/file', 'w').write('kept')")
    result = any_sandbox.run_code(code, timeout=SOON)
    if result.state == "kept":  # a regular expression looks at signals in newer versions of Python
        assert "re.match" in code
        return
    assert (result.stdout, result.interrupted, result.state, result.cause) == ("so far\n", True, "lost", "timeout")
    assert result.exit_code == 137
    after = any_sandbox.run_code("'kept' in globals(), open('/root/file').read()")
    assert (after.value, after.restarted) == ("(False, 'kept')", True)


def test_an_interrupted_cell_shows_where_it_was(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("def deep():\n    while True: pass\ndeep()", timeout=SOON)
    assert result.exit_code == 130
    assert "KeyboardInterrupt" in result.stderr
    assert "in deep" in result.stderr


def test_a_cell_that_cleans_up_on_keyboard_interrupt_can(any_sandbox: AnySandbox) -> None:
    code = "import time\ntry:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('cleaned up')"
    result = any_sandbox.run_code(code, timeout=SOON)
    assert (result.stdout, result.exit_code, result.interrupted, result.cause) == ("cleaned up\n", 0, True, "timeout")


def test_a_bash_cell_ends_at_the_deadline_with_all_that_runs_in_its_foreground(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("echo so far; (sleep 600) | sleep 601; echo never", language="bash", timeout=SOON)
    assert (result.stdout, result.interrupted, result.state, result.cause) == ("so far\n", True, "kept", "timeout")
    assert any_sandbox.run_code("pgrep -c sleep || true", language="bash", timeout=30).stdout == "0\n"


def test_a_bash_cell_that_traps_signals_ends_too(any_sandbox: AnySandbox) -> None:
    code = "trap '' INT TERM; while true; do sleep 0.05; done"
    result = any_sandbox.run_code(code, language="bash", timeout=SOON)
    assert (result.interrupted, result.state) == (True, "kept")


def test_a_cell_that_ends_before_its_deadline_is_not_interrupted(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("1 + 1", timeout=60)
    assert (result.value, result.interrupted, result.cause) == ("2", False, None)
    # The deadline of the cell before means nothing to this one.
    any_sandbox.run_code("pass", timeout=0.2)
    assert any_sandbox.run_code("import time\ntime.sleep(0.4)\n'whole'").value == "'whole'"


def test_a_deadline_that_is_over_before_the_cell_begins_interrupts_it(any_sandbox: AnySandbox) -> None:
    for _ in range(20):
        result = any_sandbox.run_code("while True: pass", timeout=1e-6)
        assert (result.interrupted, result.cause, result.state, result.exit_code) == (True, "timeout", "kept", 130)
        assert any_sandbox.run_code("1").value == "1"


@pytest.mark.every_face
def test_a_deadline_holds_for_streams(any_sandbox: AnySandbox) -> None:
    events = list(any_sandbox.run_code_stream("print('so far', flush=True)\nwhile True: pass", timeout=SOON))
    last = events[-1]
    assert last.type == "exit"
    assert (last.result.interrupted, last.result.cause, last.code) == (True, "timeout", 130)
    assert "".join(event.data for event in events if event.type == "stdout") == "so far\n"


@pytest.mark.every_face
@pytest.mark.parametrize(
    "code", ["import time\ntime.sleep(600)", "while True: pass", "import asyncio\nawait asyncio.Event().wait()"]
)
def test_interrupt_from_elsewhere_ends_the_cell(
    any_sandbox: AnySandbox, in_background: Callable[..., Future[Any]], code: str
) -> None:
    any_sandbox.run_code("kept = 1")
    running: Future[Result] = in_background(any_sandbox.run_code, code)
    wait_until_running(any_sandbox)
    assert any_sandbox.interrupt() is True
    result = running.result(60)
    assert (result.interrupted, result.cause, result.state, result.exit_code) == (True, "interrupt", "kept", 130)
    assert any_sandbox.run_code("kept").value == "1"


@pytest.mark.deep("restarts")
def test_interrupt_kills_a_cell_that_spins_in_c(
    any_sandbox: AnySandbox, in_background: Callable[..., Future[Any]]
) -> None:
    # An interrupt that comes before the loop in C has begun would end the cell as usual. The loop lets no other thread
    # run, so it is a process that says when it is surely at it.
    code = "import subprocess\nsubprocess.Popen('sleep 0.5; touch /root/spins', shell=True)\nsum(range(10**15))"
    running: Future[Result] = in_background(any_sandbox.run_code, code)
    wait_until(lambda: any_sandbox.files.exists("/root/spins"), "the cell spins")
    assert any_sandbox.interrupt() is True
    result = running.result(60)
    assert (result.interrupted, result.cause, result.state) == (True, "interrupt", "lost")


@pytest.mark.every_face
def test_interrupt_without_a_cell_does_nothing_to_the_next_one(any_sandbox: AnySandbox) -> None:
    for _ in range(20):
        assert any_sandbox.interrupt() is False
        assert any_sandbox.run_code("sum(range(100))").value == "4950"


def test_interrupts_that_race_with_the_end_of_short_cells_hit_no_other_cell(
    sandbox: Sandbox, in_background: Callable[..., Future[Any]]
) -> None:
    """Each result is either whole or says that it was interrupted; the REPL lives through all of it."""
    sandbox.run_code("kept = 1")
    over = False

    def interrupt_all_the_time() -> int:
        count = 0
        while not over:
            count += sandbox.interrupt()
        return count

    interrupting: Future[int] = in_background(interrupt_all_the_time)
    try:
        wait_until(lambda: sandbox.run_code("for i in range(1000): pass").interrupted, "an interrupt hit a cell")
        for number in range(300):
            result = sandbox.run_code(f"for i in range(200): pass\n{number}")
            assert result.state == "kept"
            assert result.interrupted or result.value == str(number)
    finally:
        over = True
    assert interrupting.result(60) > 0
    assert sandbox.run_code("kept").value == "1"


@pytest.mark.parametrize("kind", ["TimeoutError", "ValueError", "KeyboardInterrupt", "SystemExit"])
def test_a_signal_handler_of_the_user_that_raises_between_cells_breaks_nothing(
    any_sandbox: AnySandbox, kind: str
) -> None:
    any_sandbox.run_code(
        AFTER_GO + "import signal\ndef handler(*a):\n    open('/root/called', 'w').close()\n"
        f"    raise {kind}('late')\nsignal.signal(signal.SIGALRM, handler)\n"
        "after_go(lambda: os.kill(os.getpid(), signal.SIGALRM))"
    )
    go(any_sandbox)
    wait_until(lambda: any_sandbox.files.exists("/root/called"), "the handler was called")
    result = any_sandbox.run_code("os.path.exists('/root/called')")
    assert (result.value, result.state, result.restarted) == ("True", "kept", False)
