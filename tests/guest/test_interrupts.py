from __future__ import annotations

import signal
import sys
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
    assert (outcome.exit_code, outcome.interrupted) == (0, False)


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
    assert outcome.stdout in ("started\nmine\n", "mine\nstarted\nmine\n")


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
