"""File operations stay below the root of a sandbox, whatever its owner left there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.engine.files.tree import SandboxTree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "root").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    return root


@pytest.fixture
def tree(root: Path) -> Iterator[SandboxTree]:
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
    tree = SandboxTree(descriptor)
    os.close(descriptor)
    yield tree
    tree.close()


def write(tree: SandboxTree, path: str, data: bytes) -> None:
    with os.fdopen(tree.open_to_write(path), "wb") as file:
        file.write(data)


def read(tree: SandboxTree, path: str) -> bytes:
    with os.fdopen(tree.open_to_read(path), "rb") as file:
        return file.read()


def test_a_relative_path_is_below_the_home_folder(tree: SandboxTree, root: Path) -> None:
    write(tree, "a.txt", b"data")
    assert (root / "root/a.txt").read_bytes() == b"data"
    assert read(tree, "/root/a.txt") == b"data"


def test_missing_folders_are_made_on_write(tree: SandboxTree, root: Path) -> None:
    write(tree, "/a/./b//../c/d", b"1")
    assert (root / "a/c/d").read_bytes() == b"1"


def test_a_shorter_write_leaves_nothing_of_the_longer_one(tree: SandboxTree) -> None:
    write(tree, "f", b"long contents")
    write(tree, "f", b"short")
    assert read(tree, "f") == b"short"


@pytest.mark.parametrize("path", ["../secret", "/../../secret", "up/secret", "absolute", "/root/../../secret"])
def test_no_path_leads_out(tree: SandboxTree, root: Path, path: str) -> None:
    (root / "root/up").symlink_to("../..")
    (root / "root/absolute").symlink_to(root.parent / "secret")
    with pytest.raises(FileNotFoundError):
        tree.open_to_read(path)
    with pytest.raises(FileNotFoundError):
        tree.stat(path)


def test_a_write_through_a_link_stays_inside(tree: SandboxTree, root: Path) -> None:
    (root / "root/link").symlink_to("/../../secret")
    write(tree, "link", b"new")
    assert (root.parent / "secret").read_text() == "secret"
    assert (root / "secret").read_bytes() == b"new"


def test_removing_a_link_leaves_what_it_points_to(tree: SandboxTree, root: Path) -> None:
    (root / "root/folder").mkdir()
    (root / "root/folder/kept").touch()
    (root / "root/link").symlink_to("folder")
    tree.remove("link", recursive=True)
    assert (root / "root/folder/kept").exists()


def test_a_folder_is_removed_with_all_that_is_in_it_only_when_asked(tree: SandboxTree, root: Path) -> None:
    write(tree, "a/b/c", b"")
    with pytest.raises(OSError, match="not empty"):
        tree.remove("a", recursive=False)
    tree.remove("a", recursive=True)
    assert os.listdir(root / "root") == []


@pytest.mark.parametrize("path", ["/", ".", "..", "a/..", "//"])
def test_the_root_and_dots_cannot_be_removed_or_renamed(tree: SandboxTree, path: str) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        tree.remove(path, recursive=True)
    with pytest.raises(OSError, match="Invalid argument"):
        tree.rename(path, "/other")


def test_a_fifo_neither_hangs_nor_opens(tree: SandboxTree, root: Path) -> None:
    os.mkfifo(root / "root/fifo")
    with pytest.raises(PermissionError):
        tree.open_to_read("fifo")
    with pytest.raises(OSError, match="No such device"):
        tree.open_to_write("fifo")


def test_a_device_is_no_file(tree: SandboxTree) -> None:
    host = SandboxTree(descriptor := os.open("/", os.O_PATH))
    os.close(descriptor)
    with pytest.raises(PermissionError):
        host.open_to_read("/dev/null")
    host.close()


def test_what_the_kernel_shows_in_proc_is_no_file() -> None:
    host = SandboxTree(descriptor := os.open("/", os.O_PATH))
    os.close(descriptor)
    with pytest.raises(PermissionError):
        host.open_to_read(f"/proc/{os.getpid()}/status")
    with pytest.raises(PermissionError):
        host.open_to_write("/proc/self/comm")
    host.close()


def test_a_folder_is_listed_with_what_its_entries_are(tree: SandboxTree, root: Path) -> None:
    write(tree, "file", b"12345")
    (root / "root/folder").mkdir()
    (root / "root/link").symlink_to("nowhere")
    found = {entry.name: (entry.type, entry.size_bytes) for entry in tree.entries(".") if entry.type != "folder"}
    assert found == {"file": ("file", 5), "link": ("link", 7)}
    assert tree.stat("folder").type == "folder"


def test_a_folder_is_made_with_or_without_those_above_it(tree: SandboxTree, root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tree.make_folder("a/b", parents=False)
    tree.make_folder("a/b", parents=True)
    tree.make_folder("a/b", parents=True)
    with pytest.raises(FileExistsError):
        tree.make_folder("a/b", parents=False)
    assert (root / "root/a/b").is_dir()
