"""Folders up and down, and downloads to a local path: what a hostile tree holds must not reach beyond that path."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from ramet import AsyncSandbox, Copied, FileNotFound, InvalidArgument, LimitReached, Sandbox
from ramet.client import folders
from ramet.client.folders import CountedFile, ListFolder, MakeFolder, PartialFile, SaveFile, SendFile, StatPath
from ramet.protocol.values.results import FileInfo
from tests.behaviour.calling import ok
from tests.behaviour.faces import AnySandbox

MIB = 1024 * 1024


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file by its path, with its contents; folders with None."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.every_face
def test_folders_go_up_and_down_as_they_are(any_sandbox: AnySandbox, tmp_path: Path) -> None:
    local = tmp_path / "project"
    (local / "a" / "b").mkdir(parents=True)
    (local / "empty").mkdir()
    (local / "a" / "b" / "deep.txt").write_text("deep")
    (local / "large").write_bytes(os.urandom(3 * MIB))
    (local / "link").symlink_to("/etc/passwd")
    sent = any_sandbox.upload(local, "up")
    assert sent == Copied("up", 2, 3 * MIB + 4, ("link",))
    assert any_sandbox.run_code("open('/root/up/a/b/deep.txt').read()").value == "'deep'"
    got = any_sandbox.download("up", tmp_path / "down")
    assert got == Copied(str(tmp_path / "down"), 2, 3 * MIB + 4)
    (local / "link").unlink()
    assert tree(tmp_path / "down") == tree(local)


@pytest.mark.every_face
def test_a_file_is_downloaded_to_a_path_or_into_a_folder(any_sandbox: AnySandbox, tmp_path: Path) -> None:
    data = os.urandom(2 * MIB + 7)
    any_sandbox.files.write("/root/data.bin", data)
    assert any_sandbox.download("data.bin", tmp_path / "new" / "name") == Copied(
        str(tmp_path / "new" / "name"), 1, len(data)
    )
    assert any_sandbox.download("/root/data.bin", tmp_path).path == str(tmp_path / "data.bin")
    assert (tmp_path / "new" / "name").read_bytes() == (tmp_path / "data.bin").read_bytes() == data
    assert sorted(os.listdir(tmp_path)) == ["data.bin", "new"]
    any_sandbox.files.write("text", "čau\n".encode("iso8859-2"))
    assert any_sandbox.files.read_text("text", encoding="iso8859-2") == "čau\n"
    with pytest.raises(UnicodeDecodeError):
        any_sandbox.files.read_text("text")


def test_links_pipes_and_devices_are_left_out_and_named(any_sandbox: AnySandbox, tmp_path: Path) -> None:
    ok(
        any_sandbox.run_code(
            """
import os, socket
os.makedirs('/root/out/sub')
os.symlink('/etc/passwd', '/root/out/passwd'); os.symlink('..', '/root/out/sub/up'); os.symlink('/', '/root/out/root')
os.mkfifo('/root/out/pipe'); socket.socket(socket.AF_UNIX).bind('/root/out/socket')
_ = open('/root/out/sub/file', 'w').write('x')
"""
        )
    )
    copied = any_sandbox.download("out", tmp_path / "out")
    assert sorted(copied.left_out) == ["passwd", "pipe", "root", "socket", "sub/up"]
    assert tree(tmp_path / "out") == {"sub": None, "sub/file": b"x"}


def test_odd_names_stay_names(any_sandbox: AnySandbox, tmp_path: Path) -> None:
    names = ["...", "-rf", "a b", "new\nline", "back\\slash", "~", "$HOME", "\udcff", "x" * 255]
    ok(any_sandbox.run_code(f"import os; os.mkdir('/root/odd')\nfor name in {names!r}: open('/root/odd/' + name, 'w')"))
    assert any_sandbox.download("odd", tmp_path / "odd").files == len(names)
    assert sorted(os.listdir(tmp_path / "odd")) == sorted(names)


def test_a_download_goes_through_no_link_that_lies_in_its_way(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    local = tmp_path / "local"
    local.mkdir()
    (local / "folder").symlink_to(outside)
    (local / "file").symlink_to(outside / "kept")
    with Sandbox() as sandbox:
        sandbox.files.write("/root/one/file", "new")
        sandbox.download("one", local)
        assert (local / "file").read_text() == "new"
        assert not (local / "file").is_symlink()
        sandbox.files.write("/root/two/folder/kept", "stolen")
        with pytest.raises(FileExistsError):
            sandbox.download("two", local)
    assert tree(outside) == {"kept": b"kept"}


def test_a_sparse_file_stays_sparse_and_a_huge_one_is_refused_at_once(any_sandbox: AnySandbox, tmp_path: Path) -> None:
    ok(
        any_sandbox.run_code(
            """
import os
os.mkdir('/root/holes')
with open('/root/holes/some', 'wb') as file: file.truncate(40 << 20); file.seek(8 << 20); _ = file.write(b'middle')
with open('/root/huge', 'wb') as file: file.truncate(1 << 42)
"""
        )
    )
    any_sandbox.download("holes", tmp_path / "holes")
    found = os.stat(tmp_path / "holes" / "some")
    assert found.st_size == 40 * MIB
    assert found.st_blocks * 512 < 2 * MIB
    assert (tmp_path / "holes" / "some").read_bytes()[8 * MIB :][:6] == b"middle"
    with pytest.raises(LimitReached, match="more than 17179869184 bytes"):
        any_sandbox.download("huge", tmp_path / "huge")
    with pytest.raises(LimitReached, match="more than 100 bytes"):
        any_sandbox.download("holes", tmp_path / "none", max_bytes=100)
    assert sorted(os.listdir(tmp_path)) == ["holes", "none"]
    assert os.listdir(tmp_path / "none") == []


def test_a_tree_that_is_too_deep_or_has_too_many_entries_is_refused(
    any_sandbox: AnySandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(any_sandbox.run_code("import os; os.makedirs('/root/deep/' + 'd/' * 150); os.mkdir('/root/many')"))
    ok(any_sandbox.run_code("for n in range(60): open(f'/root/many/{n}', 'w')"))
    with pytest.raises(LimitReached, match="more than 100 folders deep"):
        any_sandbox.download("deep", tmp_path / "deep")
    monkeypatch.setattr(folders, "ENTRIES_AT_MOST", 50)
    with pytest.raises(LimitReached, match="more than 50 entries"):
        any_sandbox.download("many", tmp_path / "many")
    for number in range(60):
        (tmp_path / f"{number}").touch()
    with pytest.raises(LimitReached, match="more than 50 entries"):
        any_sandbox.upload(tmp_path, "back")


def test_what_is_not_there_leaves_nothing_behind(any_sandbox: AnySandbox, tmp_path: Path) -> None:
    with pytest.raises(FileNotFound):
        any_sandbox.download("nothing", tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        any_sandbox.upload(tmp_path / "nothing", "a")
    with pytest.raises(InvalidArgument, match="local_path must be a path, got an int"):
        any_sandbox.download("nothing", 7)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="max_bytes must be a whole number"):
        any_sandbox.download("nothing", tmp_path / "a", max_bytes=-1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../../etc/cron.d/x", "a\0b"])
def test_a_name_that_no_engine_would_tell_is_not_written(name: str, tmp_path: Path) -> None:
    """A server is trusted no further than the sandboxes it speaks for."""
    steps = folders.download("folder", tmp_path / "local", 1000)
    assert next(steps) == StatPath("folder")
    assert steps.send(FileInfo("folder", "folder", 0, 0o755, 0.0)) == ListFolder("folder")
    with pytest.raises(InvalidArgument):
        steps.send([FileInfo(name, "file", 1, 0o644, 0.0)])
    assert os.listdir(tmp_path) == ["local"]


def swapped_for_a_link(folder: Path, target: Path) -> None:
    """As a sandbox can do it at any moment, in a folder that is its writable mount."""
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(target)


def test_a_folder_that_becomes_a_link_while_it_is_downloaded_leads_nowhere(tmp_path: Path) -> None:
    local, outside = tmp_path / "local", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("the owner's")
    steps = folders.download("folder", local, 1000)
    next(steps)
    steps.send(FileInfo("folder", "folder", 0, 0o755, 0.0))
    steps.send([FileInfo("sub", "folder", 0, 0o755, 0.0)])
    swapped_for_a_link(local / "sub", outside)
    save = steps.send([FileInfo("file", "file", 4, 0o644, 0.0)])
    assert isinstance(save, SaveFile)
    with pytest.raises(NotADirectoryError):
        save.target.open()
    save.target.leave()
    steps.close()
    assert tree(outside) == {"file": b"the owner's"}


def test_files_and_folders_that_become_links_or_pipes_while_they_are_uploaded_are_not_read(tmp_path: Path) -> None:
    local, outside = tmp_path / "local", tmp_path / "outside"
    (local / "sub").mkdir(parents=True)
    outside.mkdir()
    for folder in (local, local / "sub", outside):
        (folder / "file").write_text("something")
    steps = folders.upload(local, "remote")
    next(steps)
    send = next(steps)
    assert isinstance(send, SendFile)
    (local / "file").unlink()
    (local / "file").symlink_to(outside / "file")
    with pytest.raises(OSError, match="symbolic links"):
        CountedFile(send.source, send.opener)
    (local / "file").unlink()
    os.mkfifo(local / "file")
    with pytest.raises(OSError, match="not a regular file"):
        CountedFile(send.source, send.opener)
    assert steps.send(1) == MakeFolder("remote/sub")
    swapped_for_a_link(local / "sub", outside)
    with pytest.raises(NotADirectoryError):
        steps.send(None)


def test_a_file_that_grows_while_it_is_read_is_bounded(tmp_path: Path) -> None:
    steps = folders.download("file", tmp_path / "local", 1000)
    next(steps)
    save = steps.send(FileInfo("file", "file", 10, 0o644, 0.0))
    assert isinstance(save, SaveFile)
    save.target.open()
    save.target.write(b"x" * 900)
    with pytest.raises(LimitReached):
        save.target.write(b"x" * 900)
    save.target.leave()
    assert os.listdir(tmp_path) == []


def test_a_download_never_takes_the_place_of_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    landing = PartialFile(str(tmp_path / "pipe"), 10)
    with pytest.raises(FileExistsError):
        landing.open()
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


async def test_a_download_that_is_cancelled_leaves_no_part_behind(tmp_path: Path) -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.files.write("data", b"x" * (20 * MIB))
        task = asyncio.create_task(sandbox.download("data", tmp_path / "data"))
        while not os.listdir(tmp_path) and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert os.listdir(tmp_path) == []
        assert (await sandbox.download("data", tmp_path / "data")).size_bytes == 20 * MIB
