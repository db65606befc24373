"""Forks of forks with all ancestors alive: the last one is as before when it has lost its ancestors."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from ramet import Mount, Sandbox
from tests.behaviour.waiting import wait_until
from tests.fork import loop_work
from tests.fork.relatives import run, value

_PENDING = ("task", "timer")  # in the loop of the cells
GENERATIONS = 18  # of which one more than 16 ancestors live

_STATE = (
    "import os, threading\n"
    "pid = os.getpid(); lock = threading.RLock(); _ = lock.acquire(); gate = threading.Event(); told = []\n"
    "thread = threading.Thread(target=lambda: (gate.wait(), told.append(1)), daemon=True); thread.start()\n"
    "ours, theirs = os.pipe(); _ = os.write(theirs, b'in the pipe'); file = open('/root/file', 'w+')\n"
    "_ = file.write('written'); file.flush(); ident = threading.get_native_id()"
)
_LOOK = (
    "generation, pid == os.getpid(), lock._is_owned(), threading.active_count(), os.read(ours, 11), file.tell(),"
    " threading.get_native_id() == ident, (gate.set(), thread.join(10), told)[2]"
)

# A folder of the host is the same before and after: a second time there is an error.
_MARKS = """
import os, threading, time
again = []; stop = threading.Event()
def work():
    number = 0
    while not stop.is_set():
        try:
            os.mkdir(f'/data/{number}')
        except FileExistsError:
            again.append(number)
        number += 1
        time.sleep(0.0002)
worker = threading.Thread(target=work, daemon=True); worker.start()
"""


def _ancestors(sandbox: Sandbox) -> int:
    return sandbox.info().usage["ancestors"]


def _chain(stack: ExitStack, generations: int) -> Sandbox:
    last = stack.enter_context(Sandbox())
    for generation in range(1, generations):
        (last,) = last.fork(1)
        stack.callback(last.close)
        run(last, f"generation = {generation}")
    return last


@pytest.mark.deep("load")
def test_a_sandbox_of_a_long_chain_loses_its_ancestors_and_nothing_else() -> None:
    with ExitStack() as stack:
        last = _chain(stack, GENERATIONS)
        run(last, _STATE)
        loop_work.begin(last, *_PENDING)
        assert _ancestors(last) > 16
        last.fork(1)[0].close()  # one that is forked is made ready for the next time
        wait_until(lambda: _ancestors(last) <= 16, "it has a memory of its own")
        assert value(last, _LOOK) == (GENERATIONS - 1, True, True, 2, b"in the pipe", 7, True, [1])
        loop_work.assert_goes_on(last, *_PENDING)
        (child,) = last.fork(1)
        with child:
            assert value(child, "generation") == GENERATIONS - 1


@pytest.mark.deep("load")
def test_a_sandbox_with_a_running_child_keeps_it_and_its_ancestors() -> None:
    with ExitStack() as stack:
        last = _chain(stack, GENERATIONS)
        busy, idle = (stack.enter_context(child) for child in last.fork(2))
        run(busy, "import subprocess; child = subprocess.Popen(['sleep', '1000'])")
        for each in (busy, idle):  # in this order: when the second is done, the first was tried
            each.fork(1)[0].close()
        wait_until(lambda: _ancestors(idle) <= 16, "the other one has a memory of its own")
        assert value(busy, "child.poll()") is None
        assert _ancestors(busy) > 16


@pytest.mark.deep("load")
def test_what_a_thread_does_meanwhile_is_done_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        last = stack.enter_context(Sandbox(mounts={"/data": Mount(tmp_path, writable=True)}))
        for _ in range(1, GENERATIONS):
            (last,) = last.fork(1)
            stack.callback(last.close)
        run(last, _MARKS)
        last.fork(1)[0].close()
        wait_until(lambda: _ancestors(last) <= 16, "it has a memory of its own")
        assert value(last, "stop.set(), worker.join(10), again[:3]")[2] == []
