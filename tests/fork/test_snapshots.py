"""Snapshots: a sandbox as it was at one moment, thawed any number of times, or put back under its own id."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from ramet import AsyncSandbox, Sandbox
from tests.behaviour.waiting import UNTIL_GO, go, wait_until_running
from tests.fork.relatives import Fork, all_the_same, at_once, run, value


def test_a_snapshot_makes_any_number_of_sandboxes_as_it_was(parent: Sandbox) -> None:
    run(parent, "kept = ['then']; _ = open('/root/file', 'w').write('then')")
    with parent.snapshot() as snapshot:
        run(parent, "kept.append('later'); _ = open('/root/file', 'w').write('later')")
        look = "(kept, open('/root/file').read())"
        with ExitStack() as stack:
            made = [stack.enter_context(Sandbox(template=snapshot)) for _ in range(3)]
            assert at_once(made, look) == [(["then"], "then")] * 3
            run(made[0], "kept.append('own')")
            assert at_once(made, "kept") == [["then", "own"], ["then"], ["then"]]
            assert value(stack.enter_context(Sandbox(template=snapshot)), look) == (["then"], "then")
        assert value(parent, look) == (["then", "later"], "later")


def test_threads_and_descriptors_of_a_snapshot_live_in_every_sandbox_made_of_it(parent: Sandbox) -> None:
    run(
        parent,
        """
import queue
asked, answered = queue.Queue(), queue.Queue()
def answers():
    while True: answered.put(asked.get() * 2)
threading.Thread(target=answers, daemon=True).start()
reading, writing = os.pipe(); _ = os.write(writing, b'left over')
""",
    )
    with parent.snapshot() as snapshot:
        with Sandbox(template=snapshot) as one, Sandbox(template=snapshot) as two:
            look = "asked.put(21)\n(answered.get(timeout=20), os.read(reading, 99))"
            assert all_the_same([parent, one, two], look) == (42, b"left over")


def test_a_snapshot_outlives_its_sandbox_and_sandboxes_outlive_the_snapshot() -> None:
    with Sandbox() as origin:
        run(origin, "kept = 42")
        snapshot = origin.snapshot()
    made = Sandbox(template=snapshot)
    snapshot.close()
    assert value(made, "kept") == 42
    (child,) = made.fork(1)
    made.close()
    assert value(child, "kept") == 42
    child.close()


@pytest.mark.promise("snapshot-restore")
def test_restore_puts_memory_files_and_working_folder_back_under_the_same_id(parent: Sandbox) -> None:
    run(parent, "stage = 1; _ = open('/root/file', 'w').write('1'); os.mkdir('/root/a'); os.chdir('/root/a')")
    with parent.snapshot() as snapshot:
        identity = parent.id
        run(parent, "import shutil; stage = 2; os.chdir('/'); shutil.rmtree('/root/a'); extra = 1")
        run(parent, "_ = open('/root/file', 'w').write('2'); open('/root/more', 'w').close()")
        for _ in range(3):
            parent.restore(snapshot)
            look = "(stage, open('/root/file').read(), os.getcwd(), 'extra' in globals(), os.path.exists('/root/more'))"
            assert value(parent, look) == (1, "1", "/root/a", False, False)
            assert parent.id == identity
            assert parent.download("/root/file") == b"1"
            run(parent, "stage = 3; extra = 2; open('/root/more', 'w').close()")


def test_restore_brings_a_lost_repl_back(parent: Sandbox) -> None:
    run(parent, "kept = 42")
    with parent.snapshot() as snapshot:
        assert parent.run_code("os._exit(9)").state == "lost"
        parent.restore(snapshot)
        again = parent.run_code("kept")
        assert (again.value, again.restarted) == ("42", False)


def test_restore_waits_for_the_running_cell_and_queued_cells_run_after_it(parent: Sandbox) -> None:
    run(parent, "steps = ['then']")
    with parent.snapshot() as snapshot, ThreadPoolExecutor(4) as threads:
        running = threads.submit(parent.run_code, UNTIL_GO + "\nsteps.append('running')\nsteps", timeout=30)
        wait_until_running(parent)
        restored = threads.submit(parent.restore, snapshot)
        wait_until_running(parent, waiting=1)
        queued = threads.submit(parent.run_code, "steps.append('queued')\nsteps")
        wait_until_running(parent, waiting=2)
        go(parent)
        assert running.result(60).value == "['then', 'running']"
        restored.result(60)
        assert queued.result(60).value == "['then', 'queued']"


def test_a_sandbox_may_take_the_state_of_a_relative_or_of_a_stranger(parent: Sandbox, fork: Fork) -> None:
    run(parent, "name = 'parent'")
    (child,) = fork(parent)
    run(child, "name = 'child'; _ = open('/root/of', 'w').write('child')")
    with child.snapshot() as snapshot:
        parent.restore(snapshot)
        assert value(parent, "(name, open('/root/of').read())") == ("child", "child")
        with Sandbox() as stranger:
            run(stranger, "name = 'stranger'")
            stranger.restore(snapshot)
            assert value(stranger, "(name, open('/root/of').read())") == ("child", "child")


def test_restoring_keeps_the_limits_of_the_sandbox(parent: Sandbox) -> None:
    with parent.snapshot() as snapshot, Sandbox(memory_mib=333, pids=99) as other:
        before = other.info().limits
        other.restore(snapshot)
        assert other.info().limits == before


def test_a_sandbox_of_a_snapshot_takes_options_on_top(parent: Sandbox) -> None:
    run(parent, "os.environ['FROM'] = 'snapshot'; os.chdir('/tmp')")
    with parent.snapshot() as snapshot:
        with Sandbox(template=snapshot, env={"MORE": "yes"}, memory_mib=444) as made:
            assert value(made, "(os.environ['FROM'], os.environ['MORE'], os.getcwd())") == ("snapshot", "yes", "/tmp")
            assert made.info().limits.memory_bytes == 444 << 20
        with Sandbox(template=snapshot, cwd="/var") as made:
            assert value(made, "os.getcwd()") == "/var"
            assert made.info().limits == parent.info().limits


def test_a_saved_snapshot_is_a_template_of_this_engine(parent: Sandbox) -> None:
    run(parent, "kept = 42; _ = open('/root/file', 'w').write('saved')")
    snapshot = parent.snapshot()
    name = f"with-kept-{parent.id}"
    snapshot.save_as(name)
    snapshot.close()
    run(parent, "kept = 0")
    with Sandbox(name) as one, Sandbox(template=name) as two:
        assert at_once([one, two], "(kept, open('/root/file').read())") == [(42, "saved")] * 2


def test_a_lost_repl_of_a_snapshot_gets_a_fresh_one(parent: Sandbox) -> None:
    run(parent, "kept = 42; _ = open('/root/file', 'w').write('kept')")
    with parent.snapshot() as snapshot, Sandbox(template=snapshot) as made:
        assert made.run_code("os._exit(2)").state == "lost"
        again = made.run_code("open('/root/file').read()")
        assert (again.value, again.restarted) == ("'kept'", True)


def test_snapshots_of_many_moments_are_an_undo_history(parent: Sandbox) -> None:
    run(parent, "step = 0; _ = open('/root/step', 'w').write('0')")
    with ExitStack() as stack:
        history = []
        for step in range(1, 6):
            history.append(stack.enter_context(parent.snapshot()))
            run(parent, f"step = {step}; _ = open('/root/step', 'w').write('{step}')")
        for step in (4, 0, 2, 3, 1):
            parent.restore(history[step])
            assert value(parent, "(step, open('/root/step').read())") == (step, str(step))


def test_a_snapshot_says_what_it_is_and_warns_when_forgotten(parent: Sandbox) -> None:
    snapshot = parent.snapshot()
    assert "Snapshot" in repr(snapshot)
    with pytest.warns(ResourceWarning, match="Snapshot"):
        del snapshot


def test_a_snapshot_of_a_sandbox_with_a_running_cell_waits_its_turn(parent: Sandbox) -> None:
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(parent.run_code, UNTIL_GO + "\ndone = True", timeout=30)
        wait_until_running(parent)
        taken = threads.submit(parent.snapshot)
        go(parent)
        assert running.result(60).ok
        with taken.result(60) as snapshot, Sandbox(template=snapshot) as made:
            assert value(made, "done") is True


async def test_the_async_face_takes_and_restores_snapshots() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.run_code("kept = 1")
        async with await sandbox.snapshot() as snapshot:
            await sandbox.run_code("kept = 2")
            await sandbox.restore(snapshot)
            assert (await sandbox.run_code("kept")).value == "1"
            async with AsyncSandbox(template=snapshot) as made:
                assert (await made.run_code("kept")).value == "1"
