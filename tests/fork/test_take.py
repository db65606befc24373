"""take: chosen names and files of a relative come into a sandbox, all of them or none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ramet import (
    AsyncSandbox,
    FileForbidden,
    FileNotFound,
    InvalidArgument,
    LimitReached,
    MergeConflict,
    NameUnknown,
    Sandbox,
    SandboxClosed,
    Taken,
    ValueUnsupported,
)
from tests.behaviour.waiting import UNTIL_GO, wait_until_running
from tests.fork.relatives import Fork, run, value


def files(taken: Taken) -> dict[str, str]:
    return {change.path: change.change for change in taken.files}


@pytest.mark.promise("take-all-or-nothing")
def test_names_and_files_of_a_child_come_into_its_parent_and_undo_takes_them_back(parent: Sandbox, fork: Fork) -> None:
    run(parent, "best = None; mine = 1; _ = open('/root/report', 'w').write('draft')")
    (child,) = fork(parent)
    run(child, "best = {'score': (1, 2.5), 'of': {'a'}}; mine = 2; _ = open('/root/report', 'w').write('final')")
    run(child, "os.mkdir('/root/plots'); os.symlink('one', '/root/plots/l')")
    run(child, "_ = open('/root/plots/one', 'w').write('1')")
    taken = parent.take(child, names=["best"], files=["report", "plots"])
    assert taken.names == ("best",)
    assert files(taken) == {
        "/root/report": "modified",
        "/root/plots": "added",
        "/root/plots/one": "added",
        "/root/plots/l": "added",
    }
    assert taken.size_bytes > 5
    look = "(best, mine, open('/root/report').read(), os.path.exists('/root/plots/l'))"
    assert value(parent, look) == ({"score": (1, 2.5), "of": {"a"}}, 1, "final", True)
    assert value(child, "mine") == 2
    assert [point.kind for point in parent.history()][-2:] == ["take", "cell"]
    assert "best and 4 files" in parent.history()[-2].code
    parent.undo(2)
    assert value(parent, look) == (None, 1, "draft", False)


def test_what_both_have_changed_is_a_conflict_and_nothing_is_taken(parent: Sandbox, fork: Fork) -> None:
    run(parent, "shared, ours, theirs = [0], 0, 0; _ = [open(f'/root/{n}', 'w').write('0') for n in 'abcd']")
    (child,) = fork(parent)
    run(parent, "shared.append(1); ours = 1; open('/root/a', 'w').write('ours'); open('/root/b', 'w').write('same')")
    run(parent, "os.unlink('/root/c'); _ = open('/root/d', 'w').write('ours')")
    run(child, "shared.append(2); theirs = 2; open('/root/a', 'w').write('theirs'); open('/root/b', 'w').write('same')")
    run(child, "_ = open('/root/c', 'w').write('theirs'); _ = open('/root/new', 'w').write('new')")
    with pytest.raises(MergeConflict, match="both sandboxes have changed") as refused:
        parent.take(child, names=["shared", "theirs"], files=True)
    assert "shared" in refused.value.names
    assert refused.value.files == ("/root/a", "/root/c")
    look = "(shared, theirs, open('/root/a').read(), os.path.exists('/root/new'), os.path.exists('/root/c'))"
    assert value(parent, look) == ([0, 1], 0, "ours", False, False)
    assert files(parent.take(child, files=True, prefer="ours")) == {"/root/new": "added"}
    taken = parent.take(child, names=["shared"], files=True, prefer="theirs")
    assert files(taken) == {"/root/a": "modified", "/root/c": "modified"}
    assert value(parent, look) == ([0, 2], 0, "theirs", True, True)
    assert value(parent, "(ours, open('/root/c').read(), open('/root/d').read())") == (1, "theirs", "ours")


def test_a_name_that_only_the_other_has_changed_is_no_conflict_where_the_common_state_is_kept() -> None:
    with Sandbox(history=10) as parent:
        run(parent, "left, right = [1], [2]")
        (child,) = parent.fork()
        with child:
            run(parent, "left.append(3)")
            run(child, "right.append(4)")
            assert parent.take(child, names=["left", "right"]).names == ("right",)
            assert value(parent, "(left, right)") == ([1, 3], [2, 4])
            run(child, "added = 1")
            assert parent.take(child, names=True).names == ("added",)


def test_removed_and_replaced_paths_modes_and_hard_links_come_too(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
for name in ('gone', 'becomes', 'mode'): _ = open(f'/root/{name}', 'w').write(name)
os.makedirs('/root/tree/below'); _ = open('/root/tree/below/x', 'w').write('x'); os.mkdir('/root/was_folder')
""",
    )
    (child,) = fork(parent)
    run(
        child,
        """
import shutil
os.unlink('/root/gone'); os.unlink('/root/becomes'); os.mkdir('/root/becomes'); os.chmod('/root/mode', 0o750)
_ = open('/root/becomes/inside', 'w').write('i'); shutil.rmtree('/root/tree'); os.rmdir('/root/was_folder')
_ = open('/root/was_folder', 'w').write('file'); os.link('/root/was_folder', '/root/linked'); os.mkfifo('/root/fifo')
sparse = open('/root/sparse', 'wb'); sparse.truncate(2**60); sparse.seek(2**40); _ = sparse.write(b'x'); sparse.close()
os.mkdir('/root/deep', 0o700); os.mkdir('/root/deep/er', 0o711); _ = open('/dev/shm/shared', 'w').write('s')
os.unlink('/etc/hostname')
""",
    )
    parent.take(child, files=True)
    assert parent.diff(child).files == ()
    look = "(os.stat('/root/linked').st_nlink, os.stat('/root/sparse').st_size, os.path.exists('/etc/hostname'))"
    assert value(parent, look) == (2, 2**60, False)
    assert value(parent, "(oct(os.stat('/root/mode').st_mode)[-3:], os.stat('/root/deep/er').st_mode & 0o777)") == (
        "750",
        0o711,
    )
    assert value(parent, "[name for name in os.listdir('/') if '.ramet-' in name]") == []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("os.unlink('/root/f/a')", "open('/root/f/a', 'w').write('x')"),
        ("open('/root/f/a', 'w').write('x')", "os.unlink('/root/f/a')"),
        ("open('/root/f/new', 'w').write('x')", "shutil.rmtree('/root/f')"),
        ("shutil.rmtree('/root/f')", "open('/root/f/new', 'w').write('x')"),
        ("(shutil.rmtree('/root/f'), open('/root/f', 'w').close())", "open('/root/f/new', 'w').write('x')"),
        ("(shutil.rmtree('/root/f'), os.symlink('/etc', '/root/f'))", "open('/root/f/new', 'w').write('x')"),
        ("os.chmod('/root/f/a', 0o600)", "os.chmod('/root/f/a', 0o640)"),
        ("os.symlink('one', '/root/l')", "os.symlink('other', '/root/l')"),
    ],
)
def test_every_kind_of_conflict_changes_nothing_and_theirs_wins_if_asked(
    parent: Sandbox, fork: Fork, ours: str, theirs: str
) -> None:
    run(parent, "import shutil; os.mkdir('/root/f'); _ = open('/root/f/a', 'w').write('a')")
    (child,) = fork(parent)
    run(parent, f"_ = {ours}")
    run(child, f"_ = {theirs}")
    with parent.snapshot() as before:
        with pytest.raises(MergeConflict):
            parent.take(child, files=["/root"])
        assert parent.diff(before).files == ()
    parent.take(child, files=["/root"], prefer="ours")
    parent.take(child, files=["/root"], prefer="theirs")
    assert parent.take(child, files=["/root"]).is_empty


def test_paths_folders_and_patterns_choose_files(parent: Sandbox, fork: Fork) -> None:
    (child,) = fork(parent)
    run(
        child,
        """
for path in ('a.csv', 'b.txt', 'x/a.csv', 'x/y/b.csv', 'x/y/c.txt', '.hidden', 'odd[1].csv'):
    os.makedirs(os.path.dirname(f'/root/{path}'), exist_ok=True); _ = open(f'/root/{path}', 'w').write(path)
""",
    )
    assert set(files(parent.take(child, files=["*.csv"]))) == {"/root/a.csv", "/root/odd[1].csv"}
    assert set(files(parent.take(child, files=["**/*.csv"]))) == {
        "/root/x",
        "/root/x/a.csv",
        "/root/x/y",
        "/root/x/y/b.csv",
    }
    assert set(files(parent.take(child, files=["x"]))) == {"/root/x/y/c.txt"}
    assert parent.take(child, files=["nothing-*"]).is_empty
    with pytest.raises(FileNotFound, match="missing"):
        parent.take(child, files=["missing"])
    with pytest.raises(InvalidArgument, match="what to take"):
        parent.take(child)
    with pytest.raises(InvalidArgument, match="itself"):
        parent.take(parent, files=True)


def test_what_cannot_travel_is_named_in_one_error(parent: Sandbox, fork: Fork) -> None:
    run(parent, "import threading, socket\nclass Old:\n    def __init__(self, n): self.n = n")
    (child,) = fork(parent)
    run(child, "good, lock, line, call = Old(1), threading.Lock(), socket.socket(), lambda: 1; new = good")
    run(child, "class New: pass\nobject_of_new = New()")
    with pytest.raises(ValueUnsupported, match=r"lock .*; line .*; call .*"):
        parent.take(child, names=["good", "lock", "line", "call"])
    with pytest.raises(ValueUnsupported, match="New, which the receiving sandbox does not have"):
        parent.take(child, names=["good", "object_of_new"])
    with pytest.raises(NameUnknown, match="nowhere"):
        parent.take(child, names=["good", "nowhere"])
    assert "good" not in value(parent, "list(globals())")
    parent.take(child, names=["good", "new"])
    assert value(parent, "(good.n, type(good) is Old, good is new)") == (1, True, True)
    run(child, "class Old:\n    def __init__(self, n): self.m = n\nanother = Old(1)")
    with pytest.raises(ValueUnsupported, match="Old, which the receiving sandbox defines otherwise"):
        parent.take(child, names=["another"])


def test_sockets_in_the_file_system_are_refused_by_name(parent: Sandbox, fork: Fork) -> None:
    (child,) = fork(parent)
    run(child, "import socket; s = socket.socket(socket.AF_UNIX); s.bind('/root/line')")
    run(child, "_ = open('/root/x', 'w').write('')")
    with pytest.raises(FileForbidden, match="/root/line"):
        parent.take(child, files=True)
    assert value(parent, "{'line', 'x'} & set(os.listdir('/root'))") == set()
    assert files(parent.take(child, files=["x"])) == {"/root/x": "added"}


def test_siblings_grandchildren_and_snapshots_are_relatives_too(parent: Sandbox, fork: Fork) -> None:
    run(parent, "x = 0; _ = open('/root/base', 'w').write('0')")
    one, other = fork(parent, 2)
    run(one, "x = 1; _ = open('/root/base', 'w').write('1')")
    (grandchild,) = fork(one)
    run(grandchild, "y = 2; _ = open('/root/more', 'w').write('2')")
    with grandchild.snapshot() as snapshot:
        taken = other.take(snapshot, names=["x", "y"], files=True)
    assert set(files(taken)) == {"/root/base", "/root/more"}
    assert value(other, "(x, y, open('/root/base').read())") == (1, 2, "1")
    assert set(files(parent.take(grandchild, files=True))) == {"/root/base", "/root/more"}
    assert one.take(parent, names=["x"], files=["base"]).is_empty


def test_strangers_take_what_does_not_contradict(parent: Sandbox) -> None:
    with Sandbox() as stranger:
        run(parent, "x = 1; _ = open('/root/ours', 'w').write('1')")
        run(stranger, "y = 2; _ = open('/root/theirs', 'w').write('2'); _ = open('/root/ours', 'w').write('other')")
        assert parent.take(stranger, names=["y"], files=["theirs"]).names == ("y",)
        with pytest.raises(MergeConflict) as refused:
            parent.take(stranger, files=True)
        assert refused.value.files == ("/root/ours",)


def test_a_full_disk_changes_nothing() -> None:
    with Sandbox(disk_mib=64) as parent:
        run(parent, "import os; state = 'before'; _ = open('/root/small', 'w').write('before')")
        (child,) = parent.fork()
        with child:
            run(child, "state = 'after'; _ = open('/root/small', 'w').write('after')")
            run(child, "_ = open('/root/zlarge', 'wb').write(bytes(40 << 20))")
            run(parent, "_ = open('/tmp/own', 'wb').write(bytes(40 << 20))")
            with pytest.raises(LimitReached, match="disk of the receiving sandbox is full"):
                parent.take(child, names=["state"], files=["/root"], prefer="theirs")
        assert value(parent, "(state, open('/root/small').read())") == ("before", "before")
        assert value(parent, "[n for n in os.listdir('/') + os.listdir('/tmp') if '.ramet-' in n]") == []


def test_a_python_that_dies_of_a_value_is_as_it_was_before(parent: Sandbox, fork: Fork) -> None:
    code = "import os\nclass Deadly:\n    def __setstate__(self, state): os.kill(os.getpid(), 9)\n"
    run(parent, code + "kept = [1]; _ = open('/root/file', 'w').write('before')")
    (child,) = fork(parent)
    run(child, "bad = Deadly(); bad.x = 1; _ = open('/root/file', 'w').write('after')")
    with pytest.raises(Exception, match="REPL ended"):
        parent.take(child, names=["bad"], files=["file"])
    assert value(parent, "(kept, 'bad' in globals(), open('/root/file').read())") == ([1], False, "before")


def test_two_that_take_from_each_other_at_once_wait_for_each_other(parent: Sandbox, fork: Fork) -> None:
    (child,) = fork(parent)
    run(parent, "of_parent = 1")
    run(child, "of_child = 2")
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(parent.take, child, ["of_child"]) for _ in range(4)]
        work += [pool.submit(child.take, parent, ["of_parent"]) for _ in range(4)]
        assert {name for one in work for name in one.result(60).names} == {"of_parent", "of_child"}
    assert value(parent, "(of_parent, of_child)") == value(child, "(of_parent, of_child)") == (1, 2)


def test_a_giver_that_closes_while_it_is_waited_for_ends_the_take(parent: Sandbox, fork: Fork) -> None:
    run(parent, "x = 1")
    (child,) = fork(parent)
    run(child, "x = 2")
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(child.run_code, UNTIL_GO)
        wait_until_running(child)
        taking = pool.submit(parent.take, child, ["x"])
        child.close()
        with pytest.raises(SandboxClosed):
            taking.result(60)
        running.exception(60)
    assert value(parent, "x") == 1


def test_busy_threads_and_pending_work_go_on_in_both(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import asyncio
count = 0
def work():
    global count
    while True: count += 1
threading.Thread(target=work, daemon=True).start()
async def tick():
    global ticks
    while True: ticks += 1; await asyncio.sleep(0)
ticks = best = 0
pending = asyncio.ensure_future(tick()); await asyncio.sleep(0)
""",
    )
    (child,) = fork(parent)
    run(child, "best = list(range(1000))")
    assert parent.take(child, names=["best"]).names == ("best",)
    for sandbox in (parent, child):
        run(sandbox, "before = count, ticks\nwhile before[0] == count or before[1] == ticks: await asyncio.sleep(0)")
        assert value(sandbox, "len(best)") == 1000


async def test_the_asynchronous_face_takes_too() -> None:
    async with AsyncSandbox() as parent:
        await parent.run_code("x = 1")
        async with await parent.fork(1) as (child,):
            await child.run_code("x = 2; open('/root/f', 'w').write('f')")
            taken = await parent.take(child, names=["x"], files=["f"])
            assert (taken.names, [change.path for change in taken.files]) == (("x",), ["/root/f"])
        assert (await parent.run_code("x")).value == "2"


@pytest.mark.deep("libraries")
def test_arrays_frames_and_values_near_the_bound(parent: Sandbox, fork: Fork) -> None:
    run(parent, "import numpy as np, pandas as pd")
    (child,) = fork(parent)
    run(child, "a = np.arange(12).reshape(3, 4).T; f = pd.DataFrame({'x': [1, None], 'y': ['a', 'b']}); v = a[1:]")
    parent.take(child, names=["a", "f", "v"])
    assert value(parent, "(a.tolist(), f.y.tolist(), int(f.x.isna().sum()))") == (
        [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]],
        ["a", "b"],
        1,
    )
    run(child, "big = bytes(99 << 20); too_big = bytes(101 << 20)")
    assert parent.take(child, names=["big"]).size_bytes > 99 << 20
    with pytest.raises(LimitReached, match="more than"):
        parent.take(child, names=["too_big"])
    assert value(parent, "(len(big), 'too_big' in globals())") == (99 << 20, False)
