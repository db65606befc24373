"""Copies of a sandbox in whose own event loop a task, a timer, a server or a connection is pending."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from ramet import Sandbox, Snapshot
from tests.fork import loop_work
from tests.fork.relatives import TOOLS, run, value

# Of each kind of fork test some run here, with the parent below, in the fast tier. Deep tests run them all.
from tests.fork.test_contract import (  # noqa: F401
    test_a_timer_that_was_set_fires_in_parent_and_child,
    test_cells_queued_behind_a_fork_run_in_the_parent_only,
    test_threads_run_on_with_the_same_idents_and_tids,
    test_variables_and_modules_are_there_and_later_changes_are_not,
)
from tests.fork.test_contract_of_files import test_eventfds_timerfds_and_epolls_keep_their_state  # noqa: F401
from tests.fork.test_diff import test_paths_restrict_the_difference  # noqa: F401
from tests.fork.test_merge import test_threads_descriptors_and_pid_of_the_winner_are_the_parents_now  # noqa: F401
from tests.fork.test_snapshots import (  # noqa: F401
    test_a_snapshot_makes_any_number_of_sandboxes_as_it_was,
    test_restore_puts_memory_files_and_working_folder_back_under_the_same_id,
)
from tests.pythons import VERSIONS, python_of


@pytest.fixture
def parent(sandbox: Sandbox) -> Sandbox:
    """As for all tests of forks, with work in its loop."""
    loop_work.begin(sandbox)
    run(sandbox, TOOLS)
    return sandbox


def fork_it(sandbox: Sandbox, stack: ExitStack) -> list[Sandbox]:
    return [stack.enter_context(child) for child in sandbox.fork(2)]


def fork_it_reseeded(sandbox: Sandbox, stack: ExitStack) -> list[Sandbox]:
    return [stack.enter_context(child) for child in sandbox.fork(2, reseed=True)]


def thaw_a_snapshot(sandbox: Sandbox, stack: ExitStack) -> list[Sandbox]:
    return [stack.enter_context(Sandbox(take_snapshot(sandbox, stack)))]


def restore_it(sandbox: Sandbox, stack: ExitStack) -> list[Sandbox]:
    snapshot = take_snapshot(sandbox, stack)
    run(sandbox, "_loop_kept.append('later')")
    sandbox.restore(snapshot)
    return []


def merge_a_child(sandbox: Sandbox, stack: ExitStack) -> list[Sandbox]:
    (child,) = sandbox.fork()
    stack.callback(child.close)
    run(sandbox, "_loop_kept.append('only in the loser')")
    sandbox.merge_into(child)
    return []


def give_it_tools(sandbox: Sandbox, stack: ExitStack) -> list[Sandbox]:
    name = f"tool_{random.randrange(10**9)}"

    def tool() -> str:
        return "called"

    tool.__name__ = name
    sandbox.set_tools([tool])
    assert value(sandbox, f"{name}()") == "called"
    return []


def take_snapshot(sandbox: Sandbox, stack: ExitStack) -> Snapshot:
    snapshot = sandbox.snapshot()
    stack.callback(snapshot.close)
    return snapshot


OPERATIONS = [fork_it, fork_it_reseeded, thaw_a_snapshot, restore_it, merge_a_child, give_it_tools]
Operation = Callable[[Sandbox, ExitStack], list[Sandbox]]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_work_of_every_kind_goes_on_in_the_sandbox_and_in_its_copies(sandbox: Sandbox, operation: Operation) -> None:
    loop_work.begin(sandbox)
    with ExitStack() as stack:
        for each in [sandbox, *operation(sandbox, stack)]:
            loop_work.assert_goes_on(each)


@pytest.mark.parametrize("kind", loop_work.KINDS)
def test_work_of_one_kind_alone_goes_on_in_children_and_grandchildren(sandbox: Sandbox, kind: str) -> None:
    loop_work.begin(sandbox, kind)
    with ExitStack() as stack:
        child = fork_it(sandbox, stack)[0]
        grandchild = fork_it(child, stack)[0]
        for each in (sandbox, grandchild, child):
            loop_work.assert_goes_on(each, kind)


def test_a_copy_made_by_os_fork_in_background_work_leaves_and_the_repl_goes_on(sandbox: Sandbox) -> None:
    run(
        sandbox,
        """
import asyncio, os
children = []
def copy():
    if (pid := os.fork()) > 0:
        children.append(pid)
timers = [asyncio.get_running_loop().call_later(0.01, copy), asyncio.get_running_loop().call_later(1000, print)]
await asyncio.sleep(0)
""",
    )
    look = """
while not children:
    await asyncio.sleep(0.01)
await asyncio.wait_for(asyncio.to_thread(os.waitpid, children[0], 0), 30)
children[0] != os.getpid()
"""
    assert value(sandbox, look) is True
    (child,) = sandbox.fork()
    with child:
        assert value(child, "len(children)") == 1


@pytest.mark.deep("load")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_two_hundred_copies_at_random_moments_lose_nothing(sandbox: Sandbox, operation: Operation) -> None:
    loop_work.begin(sandbox)
    for _ in range(200):
        with ExitStack() as stack:
            run(sandbox, f"await asyncio.sleep({random.random() * 0.003})")
            for each in [sandbox, *operation(sandbox, stack)]:
                loop_work.assert_goes_on(each, random.choice([*loop_work.KINDS]))


@pytest.mark.deep("load")
@pytest.mark.parametrize("version", VERSIONS)
def test_copies_lose_nothing_with_every_python(version: str, tmp_path: Path) -> None:
    """Before 3.12 a copy keeps the process id while a loop has work."""
    with Sandbox(python=python_of(version, tmp_path / "python")) as sandbox:
        loop_work.begin(sandbox)
        for operation in OPERATIONS * 10:
            with ExitStack() as stack:
                for each in [sandbox, *operation(sandbox, stack)]:
                    loop_work.assert_goes_on(each)
