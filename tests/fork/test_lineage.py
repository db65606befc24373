"""Families: any depth, any order of closing, and every relative an ordinary sandbox."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from ramet import AsyncSandbox, ForkFailed, Sandbox, SandboxClosed
from tests.conftest import Neighbour
from tests.fork.relatives import TOOLS, Fork, all_the_same, at_once, run, value


def test_a_child_outlives_its_parent(fork: Fork) -> None:
    with Sandbox() as parent:
        run(
            parent,
            "import threading\nkept = 42; gate = threading.Event()\nt = threading.Thread(target=gate.wait); t.start()",
        )
        (child,) = fork(parent)
    assert value(child, "gate.set(); t.join(20); (kept, t.is_alive())") == (42, False)
    (grandchild,) = fork(child)
    assert value(grandchild, "kept") == 42


def test_a_parent_outlives_its_children_and_is_forked_again(parent: Sandbox) -> None:
    run(parent, "kept = 41")
    for _ in range(3):
        for child in parent.fork(2):
            assert value(child, "kept + 1") == 42
            child.close()
    assert value(parent, "kept") == 41


@pytest.mark.deep("load")
@pytest.mark.parametrize("keep_ancestors", [False, True])
def test_thirty_generations(keep_ancestors: bool, parent: Sandbox) -> None:
    """Each generation adds to memory and files; with ancestors closed at once, or all alive until the end."""
    run(
        parent,
        """
lineage, gate = [], threading.Event()
ticks = 0
def ticking():
    global ticks
    while not gate.wait(0.01): ticks += 1
threading.Thread(target=ticking, daemon=True).start()
""",
    )
    with ExitStack() as stack:
        current = parent
        for generation in range(30):
            (child,) = current.fork(1)
            stack.callback(child.close)
            run(child, f"lineage.append({generation}); _ = open('/root/line', 'a').write('{generation},')")
            if not keep_ancestors and current is not parent:
                current.close()
            current = child
        expected = (list(range(30)), "".join(f"{n}," for n in range(30)), True)
        look = "seen = ticks\n(lineage, open('/root/line').read(), until(lambda: ticks > seen))"
        assert value(current, look) == expected
    assert value(parent, "lineage") == []


@pytest.mark.deep("restarts")
@pytest.mark.promise("fork-any-order")
def test_a_tree_is_closed_in_any_order_and_whoever_is_left_answers() -> None:
    shuffle = random.Random(3)
    for _ in range(3):
        root = Sandbox()
        run(root, "path = []")
        tree = [root]
        while len(tree) < 10:
            (child,) = shuffle.choice(tree).fork(1)
            run(child, f"path.append({len(tree)})")
            tree.append(child)
        paths = {each.id: value(each, "path") for each in tree}
        shuffle.shuffle(tree)
        while tree:
            tree.pop().close()
            for each in tree[:3]:
                assert value(each, "path") == paths[each.id]


def test_forks_of_several_sandboxes_at_once_do_not_mix(fork: Fork) -> None:
    with ExitStack() as stack:
        parents = [stack.enter_context(Sandbox()) for _ in range(4)]
        for number, parent in enumerate(parents):
            run(parent, f"family = {number}")
        with ThreadPoolExecutor(8) as threads:
            forked = list(threads.map(lambda number: (number % 4, fork(parents[number % 4], 2)), range(8)))
        for number, children in forked:
            assert at_once(children, "family") == [number] * 2
            assert len({child.id for _, some in forked for child in some}) == 16


def test_forks_and_cells_of_one_sandbox_from_many_threads_keep_their_order(parent: Sandbox, fork: Fork) -> None:
    run(parent, "count = 0")
    with ThreadPoolExecutor(8) as threads:
        jobs = [
            threads.submit(fork, parent, 1) if number % 4 == 0 else threads.submit(run, parent, "count += 1")
            for number in range(24)
        ]
        results = [job.result(90) for job in jobs]
    assert value(parent, "count") == 18
    counts = [value(result[0], "count") for result in results if isinstance(result, list)]
    assert len(counts) == 6
    assert all(0 <= count <= 18 for count in counts)


def test_a_fork_of_a_sandbox_that_never_ran_a_cell_is_a_fresh_sandbox(fork: Fork) -> None:
    with Sandbox() as parent:
        children = fork(parent, 2)
        assert at_once([parent, *children], "6 * 7") == [42] * 3
        assert len(set(at_once([parent, *children], "import random\nrandom.random()"))) in (1, 3)


def test_the_child_has_options_of_its_parent(fork: Fork) -> None:
    with Sandbox(env={"MINE": "yes"}, cwd="/tmp", memory_mib=500, pids=77, cpus=1, disk_mib=64) as parent:
        (child,) = fork(parent)
        assert child.info().limits == parent.info().limits
        assert (child.info().template, child.info().python) == (parent.info().template, parent.info().python)
        assert value(child, "import os\n(os.environ['MINE'], os.getcwd())") == ("yes", "/tmp")
        assert child.id != parent.id


def test_a_child_sees_the_host_folders_of_its_parent(fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> None:
    from ramet import Mount

    folder = tmp_path_factory.mktemp("shown")
    folder.chmod(0o755)
    (folder / "data").write_text("of the host")
    with Sandbox(mounts={"/shown": Mount(str(folder)), "/open": Mount(str(folder), writable=True)}) as parent:
        run(parent, "import os\nopened = open('/shown/data'); _ = opened.read(3)")
        children = fork(parent, 2)
        assert all_the_same([parent, *children], "opened.read()") == "the host"
        run(children[0], "_ = open('/open/told', 'w').write('child')")
        assert value(children[1], "open('/shown/told').read()") == "child", "a host folder is one and the same for all"
        assert children[0].run_code("open('/shown/data', 'w')").error is not None


def test_a_lost_repl_is_revived_before_it_is_forked(parent: Sandbox, fork: Fork) -> None:
    parent.run_code("_ = open('/root/file', 'w').write('kept')\nos._exit(3)")
    (child,) = fork(parent)
    look = "open('/root/file').read()"
    assert [each.run_code(look).value for each in (parent, child)] == ["'kept'", "'kept'"]


def test_a_child_whose_repl_is_lost_is_revived_with_its_own_files(parent: Sandbox, fork: Fork) -> None:
    run(parent, "_ = open('/root/file', 'w').write('parent')")
    children = fork(parent, 2)
    children[0].run_code("_ = open('/root/file', 'w').write('child'); os._exit(1)")
    again = children[0].run_code("open('/root/file').read()")
    assert (again.value, again.restarted) == ("'child'", True)
    assert value(children[1], "open('/root/file').read()") == "parent"


def test_output_of_a_background_thread_arrives_in_the_sandbox_that_wrote_it(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
tell = threading.Event(); told = threading.Event()
def tells():
    tell.wait(); print('told by', who, flush=True); told.set()
threading.Thread(target=tells, daemon=True).start()
""",
    )
    children = fork(parent, 2)
    for name, each in zip(("parent", "first", "second"), [parent, *children], strict=True):
        run(each, f"who = '{name}'")
    for name, each in zip(("parent", "first", "second"), [parent, *children], strict=True):
        assert run(each, "tell.set(); _ = told.wait(20)").stdout == f"told by {name}\n"


def test_interrupts_and_timeouts_work_in_a_child(parent: Sandbox, fork: Fork) -> None:
    (child,) = fork(parent)
    late = child.run_code("while True: pass", timeout=0.3)
    assert (late.cause, late.state) == ("timeout", "kept")
    assert value(child, "6 * 7") == 42
    assert value(parent, "6 * 7") == 42


def test_streams_magics_bash_and_files_work_in_a_child(parent: Sandbox, fork: Fork) -> None:
    (child,) = fork(parent)
    events = list(child.run_code_stream("print('one'); print('two', file=sys.stderr)"))
    assert [event.type for event in events][-1] == "exit"
    assert child.run_code("echo from bash > /root/said; cat /root/said", language="bash").stdout == "from bash\n"
    assert child.run_code("!echo magic").stdout.strip() == "magic"
    child.upload(b"uploaded", "/root/up")
    assert child.download("/root/up") == b"uploaded"
    assert not parent.files.exists("/root/up")
    assert run(child, "import asyncio\nawait asyncio.sleep(0)\n6 * 7").value == "42"


def test_packages_installed_in_the_parent_are_there(parent: Sandbox, fork: Fork) -> None:
    run(parent, "import sysconfig; place = sysconfig.get_path('purelib')")
    run(parent, "_ = open(f'{place}/of_the_parent.py', 'w').write('answer = 42')")
    run(parent, "import importlib; importlib.invalidate_caches()")
    children = fork(parent, 2)
    assert all_the_same([parent, *children], "import of_the_parent\nof_the_parent.answer") == 42
    run(children[0], "os.unlink(f'{place}/of_the_parent.py')")
    assert value(children[1], "os.path.exists(f'{place}/of_the_parent.py')") is True


async def test_the_async_face_forks_too() -> None:
    async with AsyncSandbox() as parent:
        await parent.run_code("kept = 41")
        children = await parent.fork(n=2)
        try:
            assert [(await child.run_code("kept + 1")).value for child in children] == ["42", "42"]
            assert children.fork_info.pause_seconds > 0
        finally:
            for child in children:
                await child.close()


def test_two_hundred_and_fifty_six_children_are_as_many_as_may_be_asked_for(parent: Sandbox) -> None:
    """A smaller crowd here; the largest is in the soak."""
    run(parent, "kept = 42")
    with ExitStack() as stack:
        children = [stack.enter_context(child) for child in parent.fork(20)]
        assert at_once(children, "kept") == [42] * 20
        assert len(set(at_once(children, "os.readlink('/proc/self/ns/pid')"))) == 20


def test_closing_a_parent_while_it_is_forked_gives_children_or_a_typed_error() -> None:
    for _ in range(5):
        parent = Sandbox()
        run(parent, TOOLS)
        with ThreadPoolExecutor(2) as threads:
            forked = threads.submit(parent.fork, 3)
            threads.submit(parent.close).result(60)
            try:
                children = forked.result(60)
            except (ForkFailed, SandboxClosed):
                continue
            for child in children:
                assert value(child, "6 * 7") == 42
                child.close()


def test_the_neighbour_notices_nothing_of_many_forks(parent: Sandbox, fork: Fork, neighbour: Neighbour) -> None:
    for _ in range(5):
        fork(parent, 4)
        neighbour.assert_unharmed()
