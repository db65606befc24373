"""diff: the files and names by which one sandbox differs from another, and nothing else."""

from __future__ import annotations

import hashlib

import pytest

from ramet import AsyncSandbox, Diff, Sandbox
from ramet.protocol.values.differences import FileState
from tests.fork.relatives import Fork, run, value


def files(difference: Diff) -> dict[str, str]:
    return {change.path: change.change for change in difference.files}


def names(difference: Diff) -> dict[str, str]:
    return {change.name: change.change for change in difference.names}


@pytest.mark.idle_loop
def test_a_fresh_fork_differs_in_nothing(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import math, threading
numbers, text, table, function = list(range(1000)), 'text', {'a': [1, 2]}, lambda x: x
class Kind: pass
thing, lock, file = Kind(), threading.Lock(), open('/root/file', 'w')
_ = file.write('x'); file.flush()
""",
    )
    (child,) = fork(parent)
    difference = parent.diff(child)
    assert difference.is_empty, str(difference)
    assert not difference.files
    assert not difference.names
    assert child.diff(parent).is_empty


def test_files_added_removed_and_modified_are_told_with_type_size_mode_and_hash(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
for name in ('same', 'gone', 'changed', 'chmoded'): _ = open(f'/root/{name}', 'w').write(name)
os.symlink('same', '/root/link'); os.mkdir('/root/folder'); _ = open('/root/folder/inside', 'w').write('x')
""",
    )
    (child,) = fork(parent)
    run(
        child,
        """
os.unlink('/root/gone'); _ = open('/root/changed', 'w').write('CHANGED'); os.chmod('/root/chmoded', 0o600)
_ = open('/root/added', 'w').write('new!'); os.unlink('/root/link'); os.symlink('new', '/root/link')
os.mkdir('/root/made'); _ = open('/dev/shm/shared', 'w').write('s')
import shutil; shutil.rmtree('/root/folder'); os.unlink('/etc/hostname')
""",
    )
    difference = parent.diff(child, paths=["/root", "/dev/shm", "/etc"])
    found = files(difference)
    expected = {
        "/root/gone": "removed",
        "/root/changed": "modified",
        "/root/chmoded": "modified",
        "/root/added": "added",
        "/root/link": "modified",
        "/root/made": "added",
        "/root/folder": "removed",
        "/dev/shm/shared": "added",
        "/etc/hostname": "removed",
    }
    assert expected.items() <= found.items()
    assert set(found) - set(expected) <= {"/root", "/root/folder/inside", "/dev/shm", "/etc"}, found
    new = next(change for change in difference.files if change.path == "/root/added")
    assert (new.before, new.after) == (None, FileState("file", 4, 0o644, hashlib.sha256(b"new!").hexdigest()))
    link = next(change for change in difference.files if change.path == "/root/link")
    assert link.before is not None
    assert link.after is not None
    assert (link.before.target, link.after.target) == ("same", "new")
    reverse = files(child.diff(parent, paths=["/root/added", "/root/gone"]))
    assert reverse == {"/root/added": "removed", "/root/gone": "added"}


def test_a_file_written_back_as_it_was_does_not_differ(parent: Sandbox, fork: Fork) -> None:
    run(parent, "_ = open('/root/file', 'w').write('text')")
    (child,) = fork(parent)
    run(child, "_ = open('/root/file', 'w').write('other'); _ = open('/root/file', 'w').write('text')")
    assert "/root/file" not in files(parent.diff(child))


def test_paths_restrict_the_difference(parent: Sandbox, fork: Fork) -> None:
    (child,) = fork(parent)
    run(child, "for path in ('/root/a', '/root/ab', '/tmp/b'): open(path, 'w').close()")
    assert files(parent.diff(child, paths=["/tmp"])).keys() - {"/tmp"} == {"/tmp/b"}
    assert files(parent.diff(child, paths=["/root/a"])).keys() == {"/root/a"}


@pytest.mark.idle_loop
def test_names_added_removed_and_changed_are_told_with_type_value_and_size(parent: Sandbox, fork: Fork) -> None:
    run(parent, "same = [1, 2, 3]; gone = 1; changed = 'before'; mutated = {'a': 1}; kind = 5\ndef work(x): return x")
    (child,) = fork(parent)
    run(
        child,
        "del gone; changed = 'after'; mutated['b'] = 2; kind = '5'; new = list(range(5))\ndef work(x): return 2 * x",
    )
    difference = parent.diff(child)
    assert names(difference) == {
        "gone": "removed",
        "changed": "changed",
        "mutated": "changed",
        "kind": "changed",
        "new": "added",
        "work": "changed",
    }
    new = next(change for change in difference.names if change.name == "new")
    assert new.after is not None
    assert (new.before, new.after.type, new.after.value) == (None, "list", "[0, 1, 2, 3, 4]")
    assert new.after.size_bytes > 40
    assert "[0, 1, 2, 3, 4]" in str(difference)


@pytest.mark.idle_loop
def test_arrays_and_tables_are_compared_by_what_they_hold(parent: Sandbox, fork: Fork) -> None:
    if not parent.run_code("import numpy as np, pandas as pd", timeout=60).ok:
        return
    run(parent, "a = np.arange(200_000); b = np.arange(200_000); df = pd.DataFrame({'x': range(10)}); df2 = df.copy()")
    (child,) = fork(parent)
    assert parent.diff(child).is_empty
    run(child, "b[150_000] = -1; df2.loc[3, 'x'] = 99")
    assert names(parent.diff(child)) == {"b": "changed", "df2": "changed"}


@pytest.mark.deep("load")
def test_objects_that_resist_being_looked_at_harm_nobody(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
class Sour:
    def __repr__(self): raise RuntimeError('sour')
    def __reduce_ex__(self, protocol): raise RuntimeError('sour')
    def __eq__(self, other): raise RuntimeError('sour')
    __hash__ = None
class Fatal:
    def __repr__(self): raise SystemExit(3)
class Deep: pass
deep = []
for _ in range(100_000): deep = [deep]
loop = []; loop.append(loop)
sour, fatal, odd = Sour(), Fatal(), '\\udc80'
""",
    )
    (child,) = fork(parent)
    run(child, "extra = 1")
    assert names(parent.diff(child))["extra"] == "added"
    assert [value(each, "6 * 7") for each in (parent, child)] == [42, 42]


def test_a_difference_of_strangers_is_told_too(parent: Sandbox) -> None:
    with Sandbox() as stranger:
        run(stranger, "own = 1; _ = open('/root/of-the-stranger', 'w').write('x')")
        difference = parent.diff(stranger)
        assert names(difference)["own"] == "added"
        assert files(difference)["/root/of-the-stranger"] == "added"


def test_a_difference_reads_as_text(parent: Sandbox, fork: Fork) -> None:
    run(parent, "score = 1")
    (child,) = fork(parent)
    run(child, "score = 2; _ = open('/root/plan.txt', 'w').write('go left')")
    text = str(parent.diff(child))
    assert "/root/plan.txt" in text
    assert "score" in text


def test_special_files_are_told_and_not_read(parent: Sandbox, fork: Fork) -> None:
    (child,) = fork(parent)
    run(child, "os.mkfifo('/root/fifo'); s = socket.socket(socket.AF_UNIX); s.bind('/root/socket')")
    run(child, "os.symlink('/proc/self/mem', '/root/trap'); os.symlink('/root/fifo', '/root/trap2')")
    found = files(parent.diff(child, paths=["/root"]))
    assert {"/root/fifo", "/root/socket", "/root/trap", "/root/trap2"} <= found.keys()


def test_ten_thousand_files_in_common_do_not_hide_one_that_differs(parent: Sandbox, fork: Fork) -> None:
    run(parent, "os.mkdir('/root/many')\nfor n in range(3000): _ = open(f'/root/many/{n}', 'w').write(str(n))")
    one, other = fork(parent, 2)
    run(one, "_ = open('/root/many/1234', 'w').write('different')")
    assert "/root/many/1234" in files(one.diff(other))
    assert len(files(one.diff(other, paths=["/root"]))) <= 3


async def test_the_async_face_tells_differences_too() -> None:
    async with AsyncSandbox() as parent:
        (child,) = await parent.fork(1)
        await child.run_code("extra = 1")
        assert names(await parent.diff(child)) == {"extra": "added"}
        await child.close()
