"""The frames around forks: what a copy of a sandbox is told, and what its parent is asked."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.guest.guest_driver import CONFIGURED, PATIENCE_SECONDS, Guest

THAWED, ASK_LOOPS, LOOPS = 3, 4, 5

GENERATORS = """
import random, gc
import numpy as np
own = random.Random(1)
class Holder: pass
holder = Holder()
holder.deep = {'a': [np.random.default_rng(2), np.random.RandomState(3)]}
bits = np.random.PCG64(4)
def closure():
    inside = random.Random(5)
    return lambda: inside.random()
draw_inside = closure()
random.seed(6); np.random.seed(7)
secure = random.SystemRandom()

def draws():
    generator, state = holder.deep['a']
    return [random.random(), np.random.random(), own.random(), generator.random(), state.random_sample(),
            int(bits.random_raw()), draw_inside()]
"""


def thawed(guest: Guest, reseed: bool = False, stir: bool = False) -> str | None:
    guest.send(THAWED, {"reseed": reseed, "stir": stir})
    kind, header, _ = guest._frame(time.monotonic() + PATIENCE_SECONDS)
    assert kind == CONFIGURED
    problem: str | None = header["error"]
    return problem


def runs_loops(guest: Guest) -> bool:
    guest.send(ASK_LOOPS, {})
    kind, header, _ = guest._frame(time.monotonic() + PATIENCE_SECONDS)
    assert kind == LOOPS
    assert isinstance(header["running"], bool)
    return header["running"]


def test_a_copy_keeps_its_generators_unless_it_is_told_to_reseed(start_guest: Callable[..., Guest]) -> None:
    pytest.importorskip("numpy")
    drawn = []
    for reseed in (None, False, True, True):
        guest = start_guest(preload=("numpy",))
        thawed(guest)  # from its template, which has it draw fresh numbers once
        assert guest.run(GENERATORS).exit_code == 0
        if reseed is not None:
            assert thawed(guest, reseed=reseed) is None
        value = guest.run("draws()").value
        assert value is not None
        drawn.append(value.strip("[]").split(","))
    alone, kept, one, other = drawn
    assert alone == kept
    for values in zip(alone, one, other, strict=True):
        assert len(set(values)) == 3


def test_a_copy_stirs_what_openssl_draws_from(guest: Guest) -> None:
    guest.run("import ssl\nadded = []\nplain = ssl.RAND_add\nssl.RAND_add = lambda *a: (added.append(a), plain(*a))[1]")
    assert thawed(guest, stir=True) is None
    assert guest.run("[len(data) for data, entropy in added]").value == "[64]"
    assert thawed(guest) is None
    assert guest.run("len(added)").value == "1"


def test_a_generator_that_cannot_be_seeded_is_told_and_the_repl_goes_on(guest: Guest) -> None:
    guest.run("import random\nclass Bad(random.Random):\n    def seed(self, *a, **k): raise ValueError('no seed')")
    guest.run("bad = Bad.__new__(Bad)")
    assert thawed(guest, reseed=True) == "ValueError: no seed"
    assert guest.run("6 * 7").value == "42"


def test_pipes_that_the_last_cell_redirected_are_put_back_after_a_thaw(guest: Guest) -> None:
    guest.run("import os\nf = open('file', 'w')\nos.dup2(f.fileno(), 1)")
    assert thawed(guest) is None
    assert guest.run("print('here')").stdout == "here\n"


def test_loops_in_threads_and_pending_tasks_are_told(guest: Guest) -> None:
    assert not runs_loops(guest)
    guest.run("import asyncio")
    assert not runs_loops(guest)
    guest.run(
        "import threading\nloop = asyncio.new_event_loop()\nbegun = threading.Event()\n"
        "loop.call_soon(begun.set)\nthread = threading.Thread(target=loop.run_forever, daemon=True)\n"
        "thread.start()\nbegun.wait()"
    )
    assert runs_loops(guest)
    guest.run("loop.call_soon_threadsafe(loop.stop)\nthread.join()")
    assert not runs_loops(guest)
    guest.run("task = asyncio.create_task(asyncio.sleep(1000))")
    assert runs_loops(guest)
    assert guest.run("task.cancel()").value == "True"
