"""The stores of packages: complete or not there, bounded, and with nothing in them but files and folders."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet.engine.packages import disk_store, memory_store
from ramet.engine.packages.disk_store import DiskStore
from ramet.engine.packages.memory_store import MemoryStore
from ramet.engine.packages.tree_copies import Size, TooMuch, copy_tree, measure
from ramet.engine.packages.trees import IN_USE_SECONDS, About, NoRoom
from ramet.isolation.files.walks import Stop

MIB = 1 << 20
ABOUT = About({"pip": "1"}, {"thing": "2"})
ONE, TWO, THREE = (digit * 64 for digit in "123")


async def open_folder(path: str, writable: bool) -> int:
    """As the launcher does, without the walls."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY)


@pytest.fixture
def make_tree(tmp_path: Path) -> Callable[..., int]:
    def make(name: str, size_bytes: int = 100) -> int:
        library = tmp_path / name / "lib"
        library.mkdir(parents=True)
        (library / "thing.py").write_bytes(b"#" * size_bytes)
        (library / "run").write_text("#!/bin/sh\n")
        (library / "run").chmod(0o775)
        os.utime(library / "thing.py", (1000, 1000))
        return os.open(tmp_path / name, os.O_RDONLY | os.O_DIRECTORY)

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir(mode=0o700)
    return tmp_path / "store"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_kept_is_found_again_by_the_next_engine(folder: Path, make_tree: Callable[..., int]) -> None:
    async def scenario() -> None:
        store = await DiskStore.open(str(folder), open_folder, 100 * MIB)
        assert await store.find(ONE) is None
        await store.keep(ONE, make_tree("a"), ABOUT, "owner")
        store.close()
        later = await DiskStore.open(str(folder), open_folder, 100 * MIB)
        kept = await later.find(ONE)
        assert kept is not None
        assert kept.about == ABOUT
        found = os.stat("lib/thing.py", dir_fd=kept.mount.fileno())
        assert (found.st_size, found.st_mtime) == (100, 1000)
        assert os.stat("lib/run", dir_fd=kept.mount.fileno()).st_mode & 0o777 == 0o755
        assert await later.find(TWO) is None
        later.close()

    asyncio.run(scenario())
    assert names(folder) == [ONE]


def test_two_engines_that_keep_the_same_have_it_once(folder: Path, make_tree: Callable[..., int]) -> None:
    async def scenario() -> None:
        stores = [await DiskStore.open(str(folder), open_folder, 100 * MIB) for _ in range(2)]
        trees = [make_tree("a"), make_tree("b")]
        pairs = zip(stores, trees, strict=True)
        kept = await asyncio.gather(*(store.keep(ONE, tree, ABOUT, "owner") for store, tree in pairs))
        assert [one.about for one in kept] == [ABOUT, ABOUT]
        for store in stores:
            store.close()

    asyncio.run(scenario())
    assert names(folder) == [ONE]


def test_a_tree_that_another_engine_puts_there_meanwhile_is_not_removed(
    folder: Path, make_tree: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        ours, theirs = [await DiskStore.open(str(folder), open_folder, 100 * MIB) for _ in range(2)]
        write = disk_store._write

        def write_and_lose(inner: int, tree: int, *more: Any) -> None:
            """The other engine keeps its tree between our look and our rename."""
            write(inner, tree, *more)
            monkeypatch.setattr(disk_store, "_write", write)
            read = disk_store._read

            def read_late(*arguments: Any) -> Any:
                monkeypatch.setattr(disk_store, "_read", read)
                found = read(*arguments)
                theirs._keep(ONE, make_tree("b"), ABOUT, Stop())
                return found

            monkeypatch.setattr(disk_store, "_read", read_late)

        monkeypatch.setattr(disk_store, "_write", write_and_lose)
        removed: list[str] = []
        monkeypatch.setattr(disk_store, "_remove", lambda _, name: removed.append(name))
        assert (await ours.keep(ONE, make_tree("a"), ABOUT, "owner")).about == ABOUT
        assert removed == []
        for store in (ours, theirs):
            store.close()

    asyncio.run(scenario())
    assert names(folder) == [ONE]


def test_a_damaged_tree_is_replaced(folder: Path, make_tree: Callable[..., int]) -> None:
    async def scenario() -> None:
        store = await DiskStore.open(str(folder), open_folder, 100 * MIB)
        (folder / ONE / "tree").mkdir(parents=True)
        (folder / ONE / "about.json").write_text("{")
        assert (await store.keep(ONE, make_tree("a"), ABOUT, "owner")).about == ABOUT
        store.close()

    asyncio.run(scenario())
    assert names(folder) == [ONE]


def test_the_longest_unused_makes_room_and_what_is_in_use_stays(folder: Path, make_tree: Callable[..., int]) -> None:
    async def scenario() -> None:
        store = await DiskStore.open(str(folder), open_folder, 3 * MIB)
        await store.keep(ONE, make_tree("a", MIB), ABOUT, "owner")
        await store.keep(TWO, make_tree("b", MIB), ABOUT, "owner")
        with pytest.raises(NoRoom):
            await store.keep(THREE, make_tree("c", MIB), ABOUT, "owner")
        assert names(folder) == [ONE, TWO]
        long_ago = time.time() - 2 * IN_USE_SECONDS
        os.utime(folder / TWO, (long_ago, long_ago))
        await store.keep(THREE, make_tree("d", MIB), ABOUT, "owner")
        assert names(folder) == [ONE, THREE]
        assert await store.find(TWO) is None
        store.close()

    asyncio.run(scenario())


def test_a_tree_that_is_too_large_is_not_kept_and_leaves_nothing(folder: Path, make_tree: Callable[..., int]) -> None:
    async def scenario() -> None:
        store = await DiskStore.open(str(folder), open_folder, 4 * MIB)
        with pytest.raises(TooMuch):
            await store.keep(ONE, make_tree("a", 3 * MIB), ABOUT, "owner")
        store.close()

    asyncio.run(scenario())
    assert names(folder) == []


def test_what_a_killed_engine_left_behind_is_swept_away_in_time(folder: Path) -> None:
    (folder / "new-1").mkdir()
    (folder / "new-2").mkdir()
    os.utime(folder / "new-1", (1000, 1000))
    asyncio.run(DiskStore.open(str(folder), open_folder, MIB)).close()
    assert names(folder) == ["new-2"]


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"base": {}, "added": {}}', '{"base": {"a": 1}, "size_bytes": 1}'])
def test_a_damaged_entry_is_as_if_it_were_not_there(folder: Path, make_tree: Callable[..., int], damage: str) -> None:
    async def scenario() -> None:
        store = await DiskStore.open(str(folder), open_folder, 100 * MIB)
        await store.keep(ONE, make_tree("a"), ABOUT, "owner")
        store.close()
        (folder / ONE / "about.json").write_text(damage)
        later = await DiskStore.open(str(folder), open_folder, 100 * MIB)
        assert await later.find(ONE) is None
        kept = await later.keep(ONE, make_tree("b"), ABOUT, "owner")
        assert kept.about == ABOUT
        later.close()

    asyncio.run(scenario())


def test_links_pipes_and_growth_are_not_taken_in(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    to = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    for odd in ("link", "pipe", "folder_link"):
        if odd == "pipe":
            os.mkfifo(source / odd)
        else:
            (source / odd).symlink_to("/etc/passwd" if odd == "link" else "/etc")
        opened = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
        with pytest.raises(TooMuch):
            measure(opened, MIB)
        with pytest.raises((TooMuch, OSError)):
            copy_tree(opened, to, Size(MIB, 100))
        os.close(opened)
        (source / odd).unlink()
    (source / "file").write_bytes(b"x" * 1000)
    opened = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(TooMuch):
        copy_tree(opened, to, Size(999, 100))
    with pytest.raises(TooMuch):
        copy_tree(opened, to, Size(MIB, 0))
    assert names(target) == []


def test_folders_that_are_nested_without_end_are_not_followed(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(70):
        deep /= "d"
        deep.mkdir()
    opened = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(TooMuch, match="nested"):
        measure(opened, MIB)


# In memory


class Borrower:
    """Stands for the body of a sandbox, which parts of it refer to."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Of 8 MiB, with a plain folder for each tree where there would be a file system."""
    monkeypatch.setattr(memory_store, "_copy", lambda tree, size, stop: os.dup(tree))
    return MemoryStore(8 * MIB)


@pytest.mark.deep("load")
def test_a_tree_that_somebody_may_hold_keeps_its_place_until_they_are_gone(
    memory: MemoryStore, make_tree: Callable[..., int]
) -> None:
    async def scenario() -> None:
        borrower = Borrower()
        first = await memory.keep(ONE, make_tree("a", 3 * MIB), ABOUT, "owner")
        first.borrowers.add(borrower)  # type: ignore[arg-type]
        with pytest.raises(NoRoom):
            await memory.keep(TWO, make_tree("b", 3 * MIB), ABOUT, "owner")
        assert await memory.find(ONE) is first
        del borrower
        await memory.keep(TWO, make_tree("c", 3 * MIB), ABOUT, "owner")
        assert await memory.find(ONE) is None

    asyncio.run(scenario())


def test_no_owner_takes_the_room_of_the_others(memory: MemoryStore, make_tree: Callable[..., int]) -> None:
    async def scenario() -> None:
        borrower = Borrower()
        held = await memory.keep(ONE, make_tree("a", 3 * MIB), ABOUT, "greedy")
        held.borrowers.add(borrower)  # type: ignore[arg-type]
        with pytest.raises(NoRoom):
            await memory.keep(TWO, make_tree("b", 3 * MIB), ABOUT, "greedy")
        await memory.keep(THREE, make_tree("c", 3 * MIB), ABOUT, "other")

    asyncio.run(scenario())


def test_trees_with_nothing_in_them_are_not_kept_without_end(
    memory: MemoryStore, make_tree: Callable[..., int]
) -> None:
    """Each costs the engine a descriptor, whatever is in it."""

    async def scenario() -> None:
        for number in range(20):
            await memory.keep(f"{number:064}", make_tree(f"t{number}", 0), ABOUT, "owner")
        found = [await memory.find(f"{number:064}") for number in range(20)]
        assert [kept is not None for kept in found] == [False] * 16 + [True] * 4

    asyncio.run(scenario())
