"""merge_into: the parent's id names the winner's state from one moment on, for everybody who uses it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ramet import AsyncSandbox, Sandbox, SandboxClosed
from ramet.transport import embedded
from tests.behaviour.waiting import UNTIL_GO, go, wait_until_running
from tests.fork.relatives import Fork, at_once, run, value
from tests.lifetime.programs import Watch
from tests.processes import command_line, descendants


@pytest.mark.promise("merge-winner")
def test_the_parent_becomes_the_winner_and_siblings_stay(parent: Sandbox, fork: Fork) -> None:
    run(parent, "state = 'parent'; _ = open('/root/file', 'w').write('parent')")
    winner, sibling = fork(parent, 2)
    run(winner, "state = 'winner'; _ = open('/root/file', 'w').write('winner'); new = 1")
    identity = parent.id
    parent.merge_into(winner)
    assert value(parent, "(state, new, open('/root/file').read())") == ("winner", 1, "winner")
    assert parent.id == identity
    assert parent.download("/root/file") == b"winner"
    assert value(sibling, "(state, open('/root/file').read())") == ("parent", "parent")


def test_the_winners_handle_is_spent(parent: Sandbox, fork: Fork) -> None:
    (winner,) = fork(parent)
    parent.merge_into(winner)
    for call in (lambda: winner.run_code("1"), lambda: winner.fork(1), winner.info, lambda: winner.files.list()):
        with pytest.raises(SandboxClosed, match="merge"):
            call()
    winner.close()
    winner.close()
    assert value(parent, "6 * 7") == 42


def test_threads_descriptors_and_pid_of_the_winner_are_the_parents_now(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import queue
asked, answered = queue.Queue(), queue.Queue()
def answers():
    while True: answered.put(asked.get() * factor)
threading.Thread(target=answers, daemon=True).start()
reading, writing = os.pipe(); factor = 1
""",
    )
    (winner,) = fork(parent)
    run(winner, "factor = 2; _ = os.write(writing, b'winner')")
    pid = value(winner, "os.getpid()")
    parent.merge_into(winner)
    look = "asked.put(21)\n(os.getpid(), answered.get(timeout=20), os.read(reading, 99))"
    assert value(parent, look) == (pid, 42, b"winner")


def test_queued_cells_run_on_the_new_state(parent: Sandbox, fork: Fork) -> None:
    run(parent, "state = 'parent'")
    (winner,) = fork(parent)
    run(winner, "state = 'winner'")
    with ThreadPoolExecutor(4) as threads:
        running = threads.submit(parent.run_code, UNTIL_GO + "\nstate", timeout=30)
        wait_until_running(parent)
        merged = threads.submit(parent.merge_into, winner)
        wait_until_running(parent, waiting=1)
        queued = threads.submit(parent.run_code, "state")
        wait_until_running(parent, waiting=2)
        go(parent)
        assert running.result(60).value == "'parent'"
        merged.result(60)
        assert queued.result(60).value == "'winner'"


def test_a_cell_of_the_winner_ends_before_the_merge(parent: Sandbox, fork: Fork) -> None:
    (winner,) = fork(parent)
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(winner.run_code, UNTIL_GO + "\nstate = 'cell ended'", timeout=30)
        wait_until_running(winner)
        merged = threads.submit(parent.merge_into, winner)
        go(winner)
        assert running.result(60).ok
        merged.result(60)
    assert value(parent, "state") == "cell ended"


def test_other_users_of_the_parent_see_the_old_or_the_new_state_and_never_an_error(parent: Sandbox, fork: Fork) -> None:
    run(parent, "state = 0; _ = open('/root/file', 'wb').write(b'0' * 100_000)")
    stop = False

    def cells() -> list[str | None]:
        seen = []
        while not stop:
            seen.append(parent.run_code("state").value)
        return seen

    def reads() -> list[bytes]:
        seen = []
        while not stop:
            seen.append(parent.download("/root/file"))
        return seen

    def looks() -> int:
        count = 0
        while not stop:
            assert parent.info().id == parent.id
            count += 1
        return count

    with ThreadPoolExecutor(4) as threads:
        watching = threads.submit(cells), threads.submit(cells), threads.submit(reads), threads.submit(looks)
        try:
            for number in range(1, 6):
                (winner,) = fork(parent)
                run(winner, f"state = {number}; _ = open('/root/file', 'wb').write(b'{number}' * 100_000)")
                parent.merge_into(winner)
        finally:
            stop = True
        (first, second), files, count = (
            [each.result(60) for each in watching[:2]],
            watching[2].result(60),
            watching[3].result(60),
        )
    for seen in (first, second):
        assert set(seen) <= set("012345")
        assert seen == sorted(map(str, seen)), "time does not run backwards"
    assert all(len(each) == 100_000 and len(set(each)) == 1 for each in files)
    assert sorted(files) == files
    assert count > 0
    assert value(parent, "state") == 5


def test_merge_after_merge_over_generations(parent: Sandbox) -> None:
    run(parent, "path = []")
    for number in range(8):
        children = parent.fork(2)
        for side, child in enumerate(children):
            run(child, f"path.append(({number}, {side}))")
        parent.merge_into(children[number % 2])
        children[1 - number % 2].close()
    assert value(parent, "path") == [(number, number % 2) for number in range(8)]


def test_a_grandchild_may_win_and_its_own_parent_stays(parent: Sandbox, fork: Fork) -> None:
    (child,) = fork(parent)
    run(child, "state = 'child'")
    (grandchild,) = fork(child)
    run(grandchild, "state = 'grandchild'")
    parent.merge_into(grandchild)
    assert at_once([parent, child], "state") == ["grandchild", "child"]
    child.merge_into(fork(parent)[0])
    assert value(child, "state") == "grandchild"


def test_the_old_processes_of_the_parent_end(parent: Sandbox, fork: Fork) -> None:
    before = set(descendants(embedded.default_engine().pid))
    run(parent, "sleeper = subprocess.Popen(['sleep', '4321'])")
    started = set(descendants(embedded.default_engine().pid)) - before
    watch = Watch([pid for pid in started if b"4321" in command_line(pid)])
    assert len(watch) == 1
    (winner,) = fork(parent)
    parent.merge_into(winner)
    watch.wait_until_all_ended()
    assert value(parent, "sleeper.poll()") == -9


def test_a_winner_whose_repl_is_lost_or_a_parent_whose_repl_is_lost(parent: Sandbox, fork: Fork) -> None:
    run(parent, "state = 'kept'")
    winner, second = fork(parent, 2)
    parent.run_code("os._exit(1)")
    parent.merge_into(winner)
    assert value(parent, "state") == "kept"
    second.run_code("_ = open('/root/file', 'w').write('second'); os._exit(1)")
    parent.merge_into(second)
    assert parent.run_code("open('/root/file').read()").value == "'second'"


def test_closing_the_merged_parent_closes_the_winner(
    parent: Sandbox, fork: Fork, neighbour_still_answers: Callable[[], None]
) -> None:
    (winner,) = fork(parent)
    parent.merge_into(winner)
    parent.close()
    with pytest.raises(SandboxClosed):
        parent.run_code("1")
    with pytest.raises(SandboxClosed):
        winner.run_code("1")
    neighbour_still_answers()


async def test_the_async_face_merges_too() -> None:
    async with AsyncSandbox() as parent:
        children = await parent.fork(2)
        await children[1].run_code("state = 'winner'")
        await parent.merge_into(children[1])
        assert (await parent.run_code("state")).value == "'winner'"
        for child in children:
            await child.close()
