from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

import pytest

from tests.guest.guest_driver import HARD_SIGNAL, Guest


@pytest.mark.parametrize(
    "work",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import threading; threading.Event().wait()",
        "import asyncio; await asyncio.sleep(60)",
        "import asyncio; await asyncio.Event().wait()",
        "import asyncio; asyncio.run(asyncio.sleep(60))",
        "import asyncio\nasync def f():\n    while True: pass\nawait f()",
        "import subprocess; subprocess.run(['sleep', '60'])",
        "!sleep 60",
        "import os; os.read(os.pipe()[0], 1)",
        "class A:\n    def __repr__(self):\n        while True: pass\nA()",
    ],
)
def test_a_soft_interrupt_ends_the_cell_and_keeps_the_state(guest: Guest, work: str) -> None:
    guest.run("kept = 1")
    guest.start("print('started')\n" + work)
    guest.wait_for_stdout("started")
    outcome = guest.finish_by_signal(signal.SIGINT)
    assert (outcome.exit_code, outcome.interrupted) == (130, True)
    assert outcome.error is not None
    assert outcome.error["name"] == "KeyboardInterrupt"
    assert "ramet_guest" not in outcome.stderr
    assert guest.run("print(kept)").stdout == "1\n"


def test_a_cell_may_handle_the_interrupt(guest: Guest) -> None:
    guest.start(
        "import time\ntry:\n    print('started')\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('handled')"
    )
    guest.wait_for_stdout("started\n")
    guest.wait_until_asleep()
    guest.interrupt()
    outcome = guest.finish()
    assert outcome.stdout == "started\nhandled\n"
    # That an interrupt reached it is told; if the engine has sent none, it is the cell's own affair.
    assert (outcome.exit_code, outcome.interrupted) == (0, True)


def test_a_hard_interrupt_ends_what_ignores_the_soft_one(guest: Guest) -> None:
    guest.start(
        "import time\nprint('started')\ngone = 0\nwhile gone < 2:\n    try:\n        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        gone += 1\n        print('ignored', gone)"
        "\ntime.sleep(60)"
    )
    guest.wait_for_stdout("started\n")
    guest.wait_until_asleep()
    for number in ("1", "2"):
        guest.interrupt()
        guest.wait_for_stdout(f"ignored {number}\n")
        guest.wait_until_asleep()
    outcome = guest.finish_by_signal(HARD_SIGNAL)
    assert (outcome.exit_code, outcome.interrupted) == (130, True)
    assert guest.run("print(gone)").stdout == "2\n"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sys.monitoring")
def test_a_hard_interrupt_beats_a_loop_that_catches_everything(guest: Guest) -> None:
    guest.start(
        "import time\nprint('started')\nwhile True:\n"
        "    try:\n        time.sleep(60)\n    except BaseException:\n        pass"
    )
    guest.wait_for_stdout("started\n")
    guest.wait_until_asleep()
    guest.interrupt()
    outcome = guest.finish_by_signal(HARD_SIGNAL)
    assert (outcome.exit_code, outcome.interrupted) == (130, True)
    assert guest.run("def f():\n    return 5\nf()").value == "5"


def test_an_awaiting_cell_that_swallows_cancellation_ends_at_the_second_interrupt(guest: Guest) -> None:
    guest.start(
        "import asyncio\nprint('started')\n"
        "try:\n    await asyncio.sleep(60)\nexcept asyncio.CancelledError:\n    print('swallowed')\n"
        "await asyncio.sleep(60)"
    )
    guest.wait_for_stdout("started\n")
    guest.wait_until_asleep()
    guest.interrupt()
    guest.wait_for_stdout("swallowed\n")
    assert guest.finish_by_signal(signal.SIGINT).interrupted
    assert guest.run("await asyncio.sleep(0, 3)").value == "3"


def test_an_interrupt_in_a_task_that_the_cell_awaits_does_not_reach_the_next_cell(guest: Guest) -> None:
    for _ in range(3):
        guest.start(
            "import asyncio\nasync def busy():\n    print('started')\n    while True: pass\n"
            "await asyncio.gather(busy(), asyncio.sleep(60))"
        )
        guest.wait_for_stdout("started\n")
        assert guest.finish_by_signal(signal.SIGINT).interrupted
        outcome = guest.run("await asyncio.sleep(0, 3)")
        assert (outcome.value, outcome.stderr) == ("3", "")


def test_interrupts_between_cells_are_forgotten(guest: Guest) -> None:
    for _ in range(300):
        guest.wait_until_asleep()
        guest.interrupt()
        guest.signal(HARD_SIGNAL)
        outcome = guest.run("print(6 * 7)")
        assert (outcome.stdout, outcome.stderr, outcome.exit_code) == ("42\n", "", 0)


def test_a_storm_of_interrupts_never_hits_the_guest(guest: Guest) -> None:
    for number in range(300):
        guest.start(f"x{number} = 1\nprint('a' * 50)\n'value'")
        guest.interrupt()
        guest.interrupt()
        outcome = guest.finish()
        assert outcome.exit_code in (0, 130)
        assert "ramet_guest" not in outcome.stderr
    assert guest.run("2").value == "2"


def test_background_tasks_are_left_alone_by_interrupts_between_cells(guest: Guest) -> None:
    guest.run(
        "import asyncio\nasync def tick():\n    n = 0\n    while True:\n        n += 1\n"
        "        print('tick', n)\n        await asyncio.sleep(0.001)\nt = asyncio.create_task(tick())"
    )
    for number in (5, 10, 15):
        guest.interrupt()
        guest.wait_for_stdout(f"tick {number}\n")
    outcome = guest.run("t.done()")
    assert outcome.value == "False"


def test_a_handler_of_the_users_serves_its_cells_only(guest: Guest) -> None:
    guest.run("import signal\nsignal.signal(signal.SIGINT, lambda *a: print('mine'))")
    guest.interrupt()
    guest.start("import time\nprint('started')\ntime.sleep(0.2)")
    guest.wait_for_stdout("started\n")
    guest.wait_until_asleep()
    guest.interrupt()
    outcome = guest.finish()
    assert outcome.stdout == "started\nmine\n"


@pytest.mark.parametrize(
    "script",
    [
        "echo started; sleep 60",
        "trap '' INT; echo started; sleep 60; sleep 60",
        "trap '' INT TERM; echo started; while :; do sleep 0.05; done",
    ],
)
def test_an_interrupt_ends_a_bash_cell_however_stubborn(guest: Guest, script: str) -> None:
    guest.start(script, "bash")
    guest.wait_for_stdout("started")
    outcome = guest.finish_by_signal(signal.SIGINT)
    assert (outcome.exit_code, outcome.interrupted) == (130, True)
    assert guest.run("1").value == "1"


def test_a_cell_blocked_on_a_full_pipe_can_be_interrupted(start_guest: Callable[..., Guest]) -> None:
    guest = start_guest()
    guest.start("import sys\nsys.stderr.write('x')\nwhile True: print('y' * 100_000)")
    guest.read_stdout(200_000)
    assert guest.finish_by_signal(signal.SIGINT).interrupted


def stopped_with_an_interrupted_cell(guest: Guest, code: str, language: str = "python") -> None:
    """The guest wakes up to a cell, its interrupt, and a signal that comes before the cell has begun."""
    guest.wait_until_asleep()
    guest.signal(signal.SIGSTOP)
    guest.start(code, language)
    guest.send_interrupt()
    guest.interrupt()
    guest.signal(signal.SIGCONT)


@pytest.mark.parametrize(("code", "language"), [("print('ran')", "python"), ("echo ran", "bash"), ("1", "python")])
def test_an_interrupt_before_the_cell_has_begun_ends_it(guest: Guest, code: str, language: str) -> None:
    for _ in range(20):
        stopped_with_an_interrupted_cell(guest, code, language)
        outcome = guest.finish()
        assert (outcome.stdout, outcome.value, outcome.exit_code, outcome.interrupted) == ("", None, 130, True)
        assert outcome.error is not None
        assert outcome.error["name"] == "KeyboardInterrupt"
        assert guest.run("6 * 7").value == "42"


def test_an_early_interrupt_holds_where_the_signal_is_blocked_or_a_thread_takes_it(guest: Guest) -> None:
    guest.run(
        "import signal, threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "_ = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})"
    )
    stopped_with_an_interrupted_cell(guest, "print('ran')")
    outcome = guest.finish()
    assert (outcome.stdout, outcome.exit_code, outcome.interrupted) == ("", 130, True)


def test_an_early_interrupt_ends_an_awaiting_cell_and_one_behind_pending_work(guest: Guest) -> None:
    guest.run("import asyncio\ntask = asyncio.create_task(asyncio.sleep(600))")
    stopped_with_an_interrupted_cell(guest, "await asyncio.sleep(600)")
    assert guest.finish().interrupted
    assert guest.run("task.done()").value == "False"


def test_an_early_interrupt_calls_the_handler_that_an_earlier_cell_has_set(guest: Guest) -> None:
    guest.run("import signal\ncaught = []\n_ = signal.signal(signal.SIGINT, lambda *a: caught.append(a[0]))")
    stopped_with_an_interrupted_cell(guest, "print('went on')")
    outcome = guest.finish()
    assert (outcome.stdout, outcome.exit_code, outcome.interrupted) == ("went on\n", 0, True)
    assert guest.run("set(caught)").value == "{<Signals.SIGINT: 2>}" or guest.run("set(caught)").value == "{2}"


def test_an_early_interrupt_is_not_swallowed_by_callbacks_before_the_cell(guest: Guest) -> None:
    guest.run("get_ipython().events.register('pre_run_cell', lambda info: None)")
    stopped_with_an_interrupted_cell(guest, "print('ran')")
    outcome = guest.finish()
    assert (outcome.stdout, outcome.exit_code, outcome.interrupted) == ("", 130, True)


def test_the_interrupt_of_a_cell_that_is_over_does_nothing(guest: Guest) -> None:
    for number in range(100):
        assert guest.run("1").value == "1"
        guest.send_interrupt()
        guest.interrupt()
        outcome = guest.run(f"print({number})")
        assert (outcome.stdout, outcome.exit_code, outcome.interrupted) == (f"{number}\n", 0, False)


def test_a_cell_that_ended_with_a_value_was_not_interrupted(guest: Guest) -> None:
    """Signals at every moment of a short cell: it either has its value or was interrupted, never both."""
    ends = set()
    for number in range(300):
        guest.start(str(number))
        guest.interrupt()
        outcome = guest.finish()
        ends.add(outcome.exit_code)
        whole = (str(number), 0, None, False)
        assert (outcome.value, outcome.exit_code, outcome.error, outcome.interrupted) == whole or (
            outcome.value is None and outcome.exit_code == 130 and outcome.interrupted
        )
    assert 0 in ends


@pytest.mark.parametrize("code", ["6 * 7", "x = 6\nx * 7", "import asyncio; await asyncio.sleep(0, 42)"])
def test_an_interrupt_right_after_the_value_comes_too_late(guest: Guest, code: str) -> None:
    """The signal arrives when the value is on its way and the displayhook has not yet returned."""
    guest.run(
        "import os, signal\n"
        "publisher = get_ipython().publisher\n"
        "def publish_value(data, last, publish=publisher.publish_value):\n"
        "    publish(data, last)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "publisher.publish_value = publish_value"
    )
    outcome = guest.run(code)
    assert (outcome.value, outcome.exit_code, outcome.error, outcome.interrupted) == ("42", 0, None, False)


@pytest.mark.deep("load")
def test_an_interrupt_in_the_first_awaiting_cell_leaves_asyncio_whole(start_guest: Callable[..., Guest]) -> None:
    for delay in range(8):
        guest = start_guest()
        guest.start("class Ready:\n    def __await__(self):\n        while True: yield\nawait Ready()")
        time.sleep(delay * 0.005)  # no condition to wait for: the import is to be hit anywhere
        assert guest.finish_by_signal(signal.SIGINT).interrupted
        assert guest.run("import asyncio; await asyncio.sleep(0, 3)").value == "3"


def test_an_interrupt_in_a_callback_before_the_cell_ends_the_cell(guest: Guest) -> None:
    guest.run(
        "def endless(info):\n    print('started')\n    while True: pass\n"
        "get_ipython().events.register('pre_run_cell', endless)"
    )
    guest.start("print(6 * 7)")
    guest.wait_for_stdout("started\n")
    outcome = guest.finish_by_signal(signal.SIGINT)
    assert (outcome.exit_code, outcome.interrupted) == (130, True)
    assert "42" not in outcome.stdout.splitlines()
