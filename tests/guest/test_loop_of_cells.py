"""The event loop of cells that do not await, with `asyncio.run` as everywhere else."""

from __future__ import annotations

import sys

import pytest

from tests.guest.guest_driver import Guest

F = "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3\n"


def test_a_plain_cell_gets_the_loop_that_later_cells_await_on(guest: Guest) -> None:
    outcome = guest.run("import asyncio\nloop = asyncio.get_event_loop()")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert guest.run("await loop.run_in_executor(None, lambda: 5)").value == "5"
    assert guest.run("await asyncio.sleep(0)\nasyncio.get_running_loop() is loop").value == "True"


def test_asyncio_run_works_in_plain_cells_and_leaves_the_loop_of_the_cells(guest: Guest) -> None:
    guest.run(F + "loop = asyncio.get_event_loop()")
    assert guest.run("asyncio.run(f())").value == "3"
    assert guest.run("asyncio.get_event_loop() is loop").value == "True"
    assert guest.run("loop.run_until_complete(f())").value == "3"
    assert guest.run("await asyncio.sleep(0)\nasyncio.run(f())").value == "3"


def test_tasks_begun_in_a_function_of_a_plain_cell_run(guest: Guest) -> None:
    guest.run(F + "def begin(): return asyncio.create_task(f(), name='mine')\ntask = begin()")
    assert guest.run("await task, task.get_name()").value == "(3, 'mine')"
    guest.run("def begin(): return asyncio.ensure_future(f())\ntask = begin()")
    assert guest.run("await task").value == "3"


def test_a_loop_that_was_closed_is_replaced(guest: Guest) -> None:
    guest.run(F + "loop = asyncio.get_event_loop()\nloop.run_until_complete(f())\nloop.close()")
    assert guest.run("asyncio.get_event_loop().run_until_complete(f())").value == "3"
    assert guest.run("await f()").value == "3"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio of Python 3.11 does not notice forks")
def test_a_child_process_has_a_loop_of_its_own(guest: Guest) -> None:
    guest.run(F + "loop = asyncio.get_event_loop()")
    code = (
        "import multiprocessing, warnings\nwarnings.simplefilter('ignore')\n"
        "context = multiprocessing.get_context('fork')\nqueue = context.Queue()\n"
        "def work(): queue.put(asyncio.get_event_loop() is loop)\n"
        "process = context.Process(target=work)\nprocess.start()\nsame = queue.get()\nprocess.join()\nsame"
    )
    assert guest.run(code).value == "False"


def test_code_that_needs_a_running_loop_is_told_where_there_is_one(guest: Guest) -> None:
    guest.run("import asyncio\ndef client(): return asyncio.get_running_loop()")
    outcome = guest.run("client()")
    assert outcome.error == {"name": "RuntimeError", "message": "no running event loop"}
    assert "hint: a cell without `await` has no running loop" in outcome.stderr
    assert guest.run("await asyncio.sleep(0)\nclient() is not None").value == "True"
