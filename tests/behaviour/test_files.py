"""Files in and out of a sandbox: from outside, while a cell runs, in constant memory, no trace in the namespace."""

from __future__ import annotations

import asyncio
import errno
import io
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ramet import (
    AsyncSandbox,
    FileError,
    FileExists,
    FileForbidden,
    FileIsFolder,
    FileNotFolder,
    FileNotFound,
    InvalidArgument,
    Sandbox,
)
from tests.behaviour.faces import AnySandbox
from tests.behaviour.memory import Peaks
from tests.behaviour.waiting import UNTIL_GO, go, wait_until_running

MIB = 1024 * 1024


@pytest.mark.every_face
def test_upload_takes_bytes_and_local_files(any_sandbox: AnySandbox, tmp_path: Path) -> None:
    local = tmp_path / "local file"
    local.write_bytes(b"from the host\n")
    any_sandbox.upload(local, "/root/a")
    any_sandbox.upload(str(local), "b")
    any_sandbox.upload(b"bytes", "/tmp/c")
    assert any_sandbox.run_code("open('/root/a').read(), open('/root/b').read(), open('/tmp/c').read()").value == (
        "('from the host\\n', 'from the host\\n', 'bytes')"
    )


def test_download_gives_the_bytes_of_a_file(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("open('/root/made', 'wb').write(bytes(range(256)))")
    assert any_sandbox.download("/root/made") == bytes(range(256))
    assert any_sandbox.download("made") == bytes(range(256))


def test_a_local_file_that_is_not_there_is_the_callers_own_error(any_sandbox: AnySandbox, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        any_sandbox.upload(tmp_path / "nothing", "/root/a")
    assert not any_sandbox.files.exists("/root/a")


@pytest.mark.every_face
@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 5 * MIB + 3])
def test_files_of_any_size_come_back_as_they_went(any_sandbox: AnySandbox, size: int) -> None:
    data = os.urandom(size)
    any_sandbox.files.write("/root/data", data)
    assert any_sandbox.files.stat("/root/data").size_bytes == size
    assert any_sandbox.files.read("/root/data") == data
    assert b"".join(any_sandbox.files.read_stream("/root/data", chunk=100_000)) == data


@pytest.mark.every_face
def test_write_takes_text_files_and_iterators(any_sandbox: AnySandbox) -> None:
    any_sandbox.files.write("text", "čau 世界\n")
    any_sandbox.files.write("file", io.BytesIO(b"f" * (3 * MIB)))
    any_sandbox.files.write("iterator", (bytes([n]) * 3 for n in range(5)))
    any_sandbox.files.write("array", bytearray(b"array"))
    assert any_sandbox.files.read("text") == "čau 世界\n".encode()
    assert any_sandbox.files.read("file") == b"f" * (3 * MIB)
    assert any_sandbox.files.read("iterator") == b"".join(bytes([n]) * 3 for n in range(5))
    assert any_sandbox.files.read("array") == b"array"


def test_write_takes_asynchronous_iterators() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for n in range(3):
            await asyncio.sleep(0)
            yield b"%d" % n

    async def session() -> bytes:
        async with AsyncSandbox() as sandbox:
            await sandbox.files.write("/root/f", pieces())
            return await sandbox.files.read("/root/f")

    assert asyncio.run(session()) == b"012"


def test_write_replaces_what_was_there_and_makes_the_folders_above(any_sandbox: AnySandbox) -> None:
    any_sandbox.files.write("/root/a/b/c", b"long content")
    any_sandbox.files.write("/root/a/b/c", b"short")
    assert any_sandbox.files.read("/root/a/b/c") == b"short"
    any_sandbox.run_code("import os; os.remove('/root/a/b/c'); os.rmdir('/root/a/b')")
    assert any_sandbox.files.list("/root/a") == []


@pytest.mark.every_face
def test_a_source_that_fails_in_the_middle_is_the_callers_error_and_the_sandbox_goes_on(
    any_sandbox: AnySandbox,
) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * MIB
        raise KeyError("the source broke")

    with pytest.raises(KeyError, match="the source broke"):
        any_sandbox.files.write("/root/f", broken())
    any_sandbox.files.write("/root/f", b"whole")
    assert any_sandbox.files.read("/root/f") == b"whole"


@pytest.mark.every_face
def test_list_and_stat_tell_what_is_there(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("""
        import os
        os.mkdir('w')
        os.chdir('w')
        os.mkdir('d')
        open('f', 'w').write('four')
        os.chmod('f', 0o640)
        os.utime('f', (5, 1000))
        os.symlink('f', 'l')
        os.mkfifo('p')
    """)
    entries = any_sandbox.files.list("w")
    assert [(entry.name, entry.type) for entry in entries] == [
        ("d", "folder"),
        ("f", "file"),
        ("l", "link"),
        ("p", "other"),
    ]
    found = any_sandbox.files.stat("/root/w/f")
    assert (found.name, found.type, found.size_bytes, found.mode, found.modified_seconds) == (
        "f",
        "file",
        4,
        0o640,
        1000,
    )
    assert any_sandbox.files.stat("/root/w/l").type == "file"
    assert any_sandbox.files.stat("/").type == "folder"


@pytest.mark.every_face
def test_a_folder_with_thousands_of_entries_is_listed_whole(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import os\nos.mkdir('many')\nfor n in range(5000): open(f'many/{n:04}', 'w').close()")
    assert [entry.name for entry in any_sandbox.files.list("many")] == [f"{n:04}" for n in range(5000)]


@pytest.mark.every_face
def test_mkdir_remove_rename_and_exists_do_what_they_say(any_sandbox: AnySandbox) -> None:
    files = any_sandbox.files
    files.mkdir("a/b/c")
    files.mkdir("a/b/c")
    with pytest.raises(FileExists):
        files.mkdir("a", parents=False)
    with pytest.raises(FileNotFound):
        files.mkdir("x/y", parents=False)
    files.write("a/f", b"1")
    files.rename("a/f", "a/g")
    assert (files.exists("a/f"), files.exists("a/g"), files.exists("a/g/under")) == (False, True, False)
    with pytest.raises(FileError) as not_empty:
        files.remove("a")
    assert not_empty.value.errno == errno.ENOTEMPTY
    files.remove("a/g")
    files.remove("a", recursive=True)
    assert not files.exists("a")
    assert "root" in [entry.name for entry in files.list("/")]
    assert [entry.name for entry in files.list()] == [entry.name for entry in files.list("/root")]


@pytest.mark.every_face
def test_each_failure_is_an_oserror_of_its_own_kind(any_sandbox: AnySandbox) -> None:
    files = any_sandbox.files
    files.mkdir("/root/folder")
    files.write("/root/file", b"")
    with pytest.raises(FileNotFound) as missing:
        files.read("/root/nothing")
    assert isinstance(missing.value, FileNotFoundError)
    assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, "/root/nothing")
    assert "/root/nothing" in str(missing.value)
    with pytest.raises(FileNotFound):
        any_sandbox.download("/root/nothing")
    with pytest.raises(FileNotFound):
        next(iter(files.read_stream("/root/nothing")))
    with pytest.raises(FileIsFolder):
        files.read("/root/folder")
    with pytest.raises(FileIsFolder):
        files.write("/root/folder", b"x" * (3 * MIB))
    with pytest.raises(FileNotFolder):
        files.list("/root/file")
    with pytest.raises(FileNotFolder):
        files.write("/root/file/below", b"")
    with pytest.raises(FileNotFound):
        files.remove("/root/nothing")
    with pytest.raises(FileNotFound):
        files.rename("/root/nothing", "/root/else")
    for path in ("/proc/version", "/dev/null"):
        with pytest.raises(FileForbidden):
            files.read(path)
    assert files.list("/root") != []


def test_a_disk_that_is_full_is_told_and_can_be_used_again(make_sandbox: Callable[..., Sandbox]) -> None:
    small = make_sandbox(disk_mib=8)
    with pytest.raises(FileError) as full:
        small.files.write("/root/big", (b"x" * MIB for _ in range(32)))
    assert full.value.errno == errno.ENOSPC
    small.files.remove("/root/big")
    small.files.write("/root/small", b"fits")
    assert small.files.read("/root/small") == b"fits"


@pytest.mark.parametrize(
    "name", ["a b", "new\nline", "-rf", "čau 世", "quote'\"$(x)`", "\udcff\udcfe", "x" * 255, "..."]
)
def test_names_may_hold_any_characters(any_sandbox: AnySandbox, name: str) -> None:
    any_sandbox.files.write(f"/root/w/{name}", b"1")
    assert [entry.name for entry in any_sandbox.files.list("/root/w")] == [name]
    assert any_sandbox.files.read(f"w/{name}") == b"1"
    assert any_sandbox.run_code("import os; os.listdir(b'/root/w')").value == repr([os.fsencode(name)])


def test_paths_that_cannot_be_are_refused_before_anything_is_sent(any_sandbox: AnySandbox) -> None:
    for path in ("", "a\0b", "x" * 5000, "\ud800"):
        with pytest.raises(InvalidArgument) as refused:
            any_sandbox.files.read(path)
        assert refused.value.argument == "path"
    with pytest.raises(InvalidArgument):
        any_sandbox.files.write("/root/f", 5)  # type: ignore[arg-type,unused-ignore]
    with pytest.raises(FileError):
        any_sandbox.files.write(f"/root/{'x' * 256}", b"")


def test_files_made_from_outside_belong_to_the_user_of_the_sandbox(any_sandbox: AnySandbox) -> None:
    any_sandbox.files.write("/root/made/file", b"1")
    assert (
        any_sandbox.run_code("import os; [os.stat(p).st_uid for p in ('/root/made', '/root/made/file')]").value
        == "[0, 0]"
    )
    assert any_sandbox.run_code("open('/root/made/file', 'a').write('2'); os.remove('/root/made/file')").ok


def test_links_are_followed_inside_the_sandbox_only(any_sandbox: AnySandbox, tmp_path: Path) -> None:
    (tmp_path / "host").write_text("of the host")
    any_sandbox.run_code(
        f"import os\nos.symlink({str(tmp_path / 'host')!r}, 'out')\nos.symlink('../../../../root/in', 'back')"
    )
    any_sandbox.files.write("/root/in", b"inside")
    with pytest.raises(FileNotFound):
        any_sandbox.files.read("/root/out")
    assert any_sandbox.files.read("/root/back") == b"inside"
    assert any_sandbox.files.read("/../../root/in") == b"inside"


def test_file_calls_work_while_a_cell_runs_and_leave_no_names(
    any_sandbox: AnySandbox, in_background: Callable[..., Future[Any]]
) -> None:
    names = "sorted(name for name in globals() if name[0] != '_')"  # those of earlier cells begin so: _i1, _1
    before = any_sandbox.run_code(names).value
    running = in_background(
        any_sandbox.run_code, "def wait():\n    " + UNTIL_GO.strip().replace("\n", "\n    ") + "\nwait()\ndel wait"
    )
    wait_until_running(any_sandbox)
    any_sandbox.files.write("/root/during", b"x" * (2 * MIB))
    assert any_sandbox.files.read("/root/during") == b"x" * (2 * MIB)
    any_sandbox.files.mkdir("/root/folder")
    any_sandbox.files.rename("/root/during", "/root/folder/f")
    assert [entry.name for entry in any_sandbox.files.list("/root/folder")] == ["f"]
    any_sandbox.files.remove("/root/folder", recursive=True)
    assert any_sandbox.info().state == "running"
    go(any_sandbox)
    assert running.result(60).ok
    assert any_sandbox.run_code(names).value == before


@pytest.mark.deep("load")
def test_a_gigabyte_goes_in_and_comes_out_in_constant_memory(sandbox: Sandbox) -> None:
    piece = b"0123456789abcdef" * 4096
    count = 1024 * MIB // len(piece)
    peaks = Peaks()
    sandbox.files.write("/root/big", (piece for _ in range(count)))
    assert sandbox.files.stat("/root/big").size_bytes == 1024 * MIB
    received = 0
    for part in sandbox.files.read_stream("/root/big", chunk=MIB):
        received += len(part)
        assert part[:16] == b"0123456789abcdef"
    assert received == 1024 * MIB
    growth = peaks.growth_bytes()
    assert max(growth.values()) < 64 * MIB, growth


def test_the_async_face_streams_in_constant_memory_too() -> None:
    async def session() -> tuple[int, dict[str, int]]:
        async with AsyncSandbox() as sandbox:
            await sandbox.run_code("open('/root/sparse', 'wb').truncate(256 << 20)")
            peaks = Peaks()
            received = 0
            async for part in sandbox.files.read_stream("/root/sparse"):
                received += len(part)
            return received, peaks.growth_bytes()

    received, growth = asyncio.run(session())
    assert received == 256 * MIB
    assert max(growth.values()) < 64 * MIB, growth


@pytest.mark.every_face
def test_a_reader_that_gives_up_early_leaves_the_sandbox_usable(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("open('/root/sparse', 'wb').truncate(1 << 30)")
    for _ in range(5):
        stream = any_sandbox.files.read_stream("/root/sparse")
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    any_sandbox.files.write("/root/after", b"1")
    assert any_sandbox.files.read("/root/after") == b"1"
