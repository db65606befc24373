"""Pools, processes and managers of `multiprocessing` that are alive when their sandbox is copied.

Their processes stay with the sandbox that was forked. In a copy whoever uses them gets an error that says so, at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet import Sandbox
from tests.fork import loop_work
from tests.fork.relatives import TOOLS, Fork, run, value
from tests.pythons import VERSIONS, python_of

STAYED = "stayed with the sandbox that this one is a copy of"

# The workers of pools have begun to wait when this ends, which is when they hold the locks of their queues.
ALIVE = """
import concurrent.futures, gc, multiprocessing, multiprocessing.pool, threading, time
def square(number): return number * number
pool = multiprocessing.Pool(2)
executor = concurrent.futures.ProcessPoolExecutor(2)
threads = multiprocessing.pool.ThreadPool(2)
started = [pool.map(square, [1, 2]), executor.submit(square, 3).result(), threads.map(square, [4])]
process = multiprocessing.Process(target=time.sleep, args=(3600,))
process.start()
manager = multiprocessing.Manager()
shared = manager.dict(a=1)
"""
BUSY = """
called, in_thread = threading.Event(), []
applied = pool.apply_async(time.sleep, (3600,), error_callback=lambda error: called.set())
mapped = pool.map_async(time.sleep, [3600] * 5)
iterated = pool.imap(time.sleep, [3600] * 3)
future = executor.submit(time.sleep, 3600)
def wait_in_thread():
    try:
        mapped.get()
    except RuntimeError as error:
        in_thread.append(str(error))
thread = threading.Thread(target=wait_in_thread, daemon=True)
thread.start()
"""
REFUSED = [
    "pool.map(square, [1])",
    "pool.apply(square, (1,))",
    "pool.apply_async(square, (1,)).get()",
    "list(pool.imap_unordered(square, [1]))",
    "pool.__enter__()",
    "executor.submit(square, 1)",
    "list(executor.map(square, [1]))",
    "process.join()",
    "process.join(1)",
    "process.is_alive()",
    "process.terminate()",
    "process.kill()",
    "shared['a']",
    "manager.list()",
]
REFUSED_LATER = ["applied.get()", "mapped.get()", "next(iterated)", "future.result()"]
ENDINGS = [
    "pool.terminate(); pool.join()",
    "pool.close(); pool.join()",
    "pool.__exit__(None, None, None)",
    "del pool; gc.collect()",
    "executor.shutdown()",
    "manager.shutdown()",
    "del manager, shared; gc.collect()",
    "process.close()",
]
NEW_ONES = """
with multiprocessing.Pool(2) as new_pool, concurrent.futures.ProcessPoolExecutor(2) as new_executor:
    new_process = multiprocessing.Process(target=square, args=(1,))
    new_process.start()
    new_process.join(30)
    with multiprocessing.Manager() as new_manager:
        worked = [new_pool.map(square, [5]), new_executor.submit(square, 6).result(30), new_process.exitcode,
                  dict(new_manager.dict(b=2)), threads.map(square, [7])]
worked
"""
WORKED = [[25], 36, 0, {"b": 2}, [49]]


def test_a_copy_says_that_the_processes_stayed_behind_and_makes_new_ones(parent: Sandbox, fork: Fork) -> None:
    run(parent, ALIVE)
    run(parent, BUSY)
    (child,) = fork(parent)
    for code in REFUSED + REFUSED_LATER:
        refused = child.run_code(code, timeout=30)
        assert refused.error is not None, code
        assert refused.error.name in ("RuntimeError", "BrokenProcessPool"), (code, refused.error)
        assert STAYED in refused.error.message, (code, refused.error)
        assert refused.background == ""
    assert value(child, "called.wait(30), [STAYED in text for text in in_thread]".replace("STAYED", repr(STAYED))) == (
        True,
        [True],
    )
    assert value(child, "list(iterated), process.exitcode, multiprocessing.active_children()") == ([], -9, [])
    assert value(child, NEW_ONES) == WORKED
    for code in ENDINGS:
        run(child, code, timeout=30)
    assert value(child, "square(3)") == 9


def test_the_parent_is_unharmed(parent: Sandbox, fork: Fork) -> None:
    run(parent, ALIVE)
    (child,) = fork(parent)
    assert STAYED in str(child.run_code("pool.map(square, [1])", timeout=30).error)
    look = "pool.map(square, [2]), executor.submit(square, 3).result(30), process.is_alive(), shared['a']"
    assert value(parent, look) == ([4], 9, True, 1)
    assert value(parent, NEW_ONES) == WORKED
    run(parent, "process.terminate(); process.join(30); pool.terminate(); pool.join(); executor.shutdown()", timeout=60)
    assert value(parent, "process.exitcode") == -15


def test_a_process_that_ended_before_the_fork_can_be_joined_in_the_copy(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        "import multiprocessing.connection\nended = multiprocessing.Process(target=sys.exit, args=(7,))\n"
        "ended.start()\n_ = multiprocessing.connection.wait([ended.sentinel], 30)",
    )
    (child,) = fork(parent)
    assert value(child, "ended.join(); ended.exitcode, ended.is_alive()") == (7, False)


@pytest.mark.parametrize("copy", ["snapshot", "restore", "merge"])
def test_every_way_to_a_copy_is_the_same(parent: Sandbox, fork: Fork, copy: str) -> None:
    run(parent, ALIVE)
    copied = COPIES[copy](parent, fork)
    with copied:
        assert STAYED in str(copied.run_code("pool.map(square, [1])", timeout=30).error)
        assert value(copied, NEW_ONES) == WORKED


def _restored(parent: Sandbox, fork: Fork) -> Sandbox:
    with parent.snapshot() as snapshot:
        parent.restore(snapshot)
    return parent


def _thawed(parent: Sandbox, fork: Fork) -> Sandbox:
    with parent.snapshot() as snapshot:
        return Sandbox(snapshot)


def _merged(parent: Sandbox, fork: Fork) -> Sandbox:
    parent.merge_into(fork(parent)[0])
    return parent


COPIES: dict[str, Callable[[Sandbox, Fork], Sandbox]] = {"snapshot": _thawed, "restore": _restored, "merge": _merged}


def test_a_child_made_by_os_fork_is_told_nothing_new(parent: Sandbox) -> None:
    """It is no copy of the sandbox: multiprocessing's own refusal stays."""
    run(parent, ALIVE)
    told = value(
        parent,
        """
reading, writing = os.pipe()
if (pid := os.fork()) == 0:
    try:
        process.join()
    except BaseException as error:
        os.write(writing, type(error).__name__.encode())
    os._exit(0)
_ = os.waitpid(pid, 0)
os.read(reading, 100)
""",
    )
    assert told == b"AssertionError"


@pytest.mark.deep("load")
def test_a_hundred_copies_of_busy_pools_never_hang(parent: Sandbox) -> None:
    run(parent, ALIVE)
    for _ in range(100):
        run(parent, f"result = pool.map_async(square, range({random.randrange(2000)}), chunksize=1)")
        with parent.fork()[0] as child:
            for code in ("executor.submit(square, 1).result()", random.choice(REFUSED[:10])):
                refused = child.run_code(code, timeout=30)
                assert STAYED in str(refused.error), refused
            ended = child.run_code("result.wait(30); result.ready()", timeout=60)
            assert ended.value == "True", ended
            run(child, random.choice(ENDINGS))
        run(parent, "_ = result.get(30)")


@pytest.mark.deep("load")
def test_work_in_the_loop_goes_on_beside_them(sandbox: Sandbox, fork: Fork) -> None:
    loop_work.begin(sandbox)
    run(sandbox, ALIVE)
    (child,) = fork(sandbox)
    assert STAYED in str(child.run_code("pool.map(square, [1])", timeout=30).error)
    loop_work.assert_goes_on(child)


@pytest.mark.deep("load")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("with_loop", [False, True])
def test_every_python_says_that_the_processes_stayed_behind(version: str, with_loop: bool, tmp_path: Path) -> None:
    with Sandbox(python=python_of(version, tmp_path / "python")) as sandbox:
        if with_loop:
            loop_work.begin(sandbox)
        run(sandbox, TOOLS + ALIVE + BUSY)
        with sandbox.fork()[0] as child:
            for code in REFUSED + REFUSED_LATER:
                refused = child.run_code(code, timeout=30)
                assert STAYED in str(refused.error), (code, refused)
            assert value(child, NEW_ONES) == WORKED
            for code in ENDINGS:
                run(child, code, timeout=30)
