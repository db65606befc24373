"""Files that clients upload and code makes: kept, bounded, seen by their owner only, whole or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramet.doors.gateway.files.names import clean_name, distinct, mime_type_of
from ramet.doors.gateway.files.refusals import FileExpired, FileNotDownloadable, FileTooLarge, FileUnknown, StoreFull
from ramet.doors.gateway.files.shapes import ListQuery, downloadable, file_object, list_objects
from ramet.doors.gateway.files.store import FileLimits, FileStore
from ramet.errors import RametError
from tests.gateway.rooms import ALICE, BOB, Clock, pieces, read_all


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_file_comes_back_as_it_was_and_only_to_its_owner(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "files")
    row = await store.add(ALICE, "data.csv", None, pieces(b"a,b\n", b"1,2\n"))
    assert (row.filename, row.mime_type, row.size_bytes) == ("data.csv", "text/csv", 8)
    assert await read_all(store.content(ALICE, row.id)) == b"a,b\n1,2\n"
    for refused in (store.get, store.content):
        with pytest.raises(FileUnknown):
            refused(BOB, row.id)
    with pytest.raises(FileUnknown):
        await store.delete(BOB, row.id)
    assert store.list(BOB).rows == ()
    assert store.some(BOB, [row.id]) == []
    store.close()


async def test_files_are_there_after_a_restart(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "files")
    row = await store.add(ALICE, "kept.txt", "text/plain", pieces(b"kept"))
    store.close()
    again = FileStore(tmp_path / "files")
    assert again.get(ALICE, row.id).filename == "kept.txt"
    assert await read_all(again.content(ALICE, row.id)) == b"kept"
    again.close()


def test_nobody_else_can_read_the_folder(tmp_path: Path) -> None:
    FileStore(tmp_path / "files").close()
    for path in (tmp_path / "files", tmp_path / "files" / "content", tmp_path / "files" / "incoming"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "files" / "index.sqlite").stat().st_mode) == 0o600


def test_one_store_at_a_time_has_the_folder(tmp_path: Path) -> None:
    first = FileStore(tmp_path / "files")
    with pytest.raises(RametError, match="in use by another gateway"):
        FileStore(tmp_path / "files")
    first.close()
    FileStore(tmp_path / "files").close()


_KILLED_WHILE_WRITING = """
import asyncio, sys
from ramet.doors.gateway.files.store import FileStore

async def endless():
    yield b"x" * (2 * 1024 * 1024)
    print("half", flush=True)
    await asyncio.Event().wait()

async def main():
    store = FileStore(sys.argv[1])
    async def whole():
        yield b"whole"
    print((await store.add("alice", "whole.txt", None, whole())).id, flush=True)
    await store.add("alice", "half.txt", None, endless())

asyncio.run(main())
"""


async def test_a_process_killed_while_it_writes_leaves_no_half_file(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _KILLED_WHILE_WRITING, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    whole = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"half\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert os.listdir(folder / "incoming") != []
    # One that was moved to its place and had no row yet.
    (folder / "content" / "file_orphan").write_bytes(b"orphan")
    store = FileStore(folder)
    assert [row.id for row in store.list(ALICE).rows] == [whole]
    assert os.listdir(folder / "incoming") == []
    assert os.listdir(folder / "content") == [whole]
    store.close()


async def test_a_stream_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 3_000_000
        raise ConnectionError("gone")

    store = FileStore(tmp_path / "files")
    with pytest.raises(ConnectionError):
        await store.add(ALICE, "x", None, broken())
    assert os.listdir(tmp_path / "files" / "incoming") == os.listdir(tmp_path / "files" / "content") == []
    store.close()


async def test_size_number_and_sum_of_files_are_bounded(tmp_path: Path) -> None:
    limits = FileLimits(file_bytes=10, owner_files=3, owner_bytes=15, total_bytes=25)
    store = FileStore(tmp_path / "files", limits)
    with pytest.raises(FileTooLarge):
        await store.add(ALICE, "long", None, pieces(b"x" * 11))
    first = await store.add(ALICE, "a", None, pieces(b"x" * 10))
    with pytest.raises(StoreFull):
        await store.add(ALICE, "b", None, pieces(b"x" * 6))
    await store.add(ALICE, "c", None, pieces(b"x" * 5))
    await store.add(ALICE, "d", None, pieces())
    with pytest.raises(StoreFull, match="3 files"):
        await store.add(ALICE, "e", None, pieces())
    await store.add(BOB, "f", None, pieces(b"x" * 10))
    with pytest.raises(StoreFull, match="no room"):
        await store.add(BOB, "g", None, pieces(b"x"))
    await store.delete(ALICE, first.id)
    await store.add(BOB, "g", None, pieces(b"x"))
    store.close()
    # What was counted is counted again after a restart.
    again = FileStore(tmp_path / "files", limits)
    with pytest.raises(StoreFull):
        await again.add(BOB, "h", None, pieces(b"x" * 10))
    again.close()


async def test_uploads_that_arrive_together_count_together(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "files", FileLimits(owner_bytes=3_000_000))
    first_is_in, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        first_is_in.set()
        await go_on.wait()
        yield b"x"

    adding = asyncio.create_task(store.add(ALICE, "slow", None, slow()))
    await asyncio.wait_for(first_is_in.wait(), 60)
    with pytest.raises(StoreFull):
        await store.add(ALICE, "second", None, pieces(b"x" * 2_000_000))
    go_on.set()
    assert (await adding).size_bytes == 2_000_001
    store.close()


async def test_deleting_a_file_that_is_being_read_takes_nothing_away(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "files")
    row = await store.add(ALICE, "big", None, pieces(b"x" * 3_000_000))
    stream = store.content(ALICE, row.id)
    await store.delete(ALICE, row.id)
    with pytest.raises(FileUnknown):
        store.get(ALICE, row.id)
    assert len(await read_all(stream)) == 3_000_000
    store.close()


async def test_files_expire_and_are_known_as_expired_for_a_while(tmp_path: Path, clock: Clock) -> None:
    limits = FileLimits(made_kept_seconds=100.0, expired_known_seconds=1000.0)
    store = FileStore(tmp_path / "files", limits, clock)
    upload = await store.add(ALICE, "upload", None, pieces(b"x"))
    short = await store.add(ALICE, "short", None, pieces(b"x"), expires_in_seconds=3600)
    made = await store.add(ALICE, "made", None, pieces(b"x"), downloadable=True)
    assert (upload.expires_seconds, made.expires_seconds) == (None, clock.now + 100)
    clock.now += 101
    with pytest.raises(FileExpired):
        store.get(ALICE, made.id)
    await store.tend()
    assert not (tmp_path / "files" / "content" / made.id).exists()
    assert [row.id for row in store.list(ALICE).rows] == [short.id, upload.id]
    with pytest.raises(FileExpired):
        store.content(ALICE, made.id)
    clock.now += 1000
    await store.tend()
    with pytest.raises(FileUnknown):
        store.get(ALICE, made.id)
    store.close()


async def test_lists_page_in_both_shapes_also_while_files_are_deleted(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "files")
    ids = [(await store.add(ALICE, f"{n}.txt", None, pieces(b"x"))).id for n in range(5)]
    newest_first = ids[::-1]

    first = list_objects(store, ALICE, ListQuery.read([("limit", "2")]), older=False)
    assert [one["id"] for one in first["data"]] == newest_first[:2]  # type: ignore[attr-defined]
    # A client that deletes what it was shown goes on behind it.
    for file_id in newest_first[:2]:
        await store.delete(ALICE, file_id)
    query = ListQuery.read([("limit", "2"), ("page", str(first["next_page"]))])
    second = list_objects(store, ALICE, query, older=False)
    assert [one["id"] for one in second["data"]] == newest_first[2:4]  # type: ignore[attr-defined]
    query = ListQuery.read([("limit", "2"), ("page", str(second["next_page"]))])
    last = list_objects(store, ALICE, query, older=False)
    assert ([one["id"] for one in last["data"]], last["next_page"]) == (newest_first[4:], None)  # type: ignore[attr-defined]

    older = list_objects(store, ALICE, ListQuery.read([("limit", "2")]), older=True)
    assert (older["first_id"], older["last_id"], older["has_more"]) == (newest_first[2], newest_first[3], True)
    back = list_objects(store, ALICE, ListQuery.read([("before_id", newest_first[4])]), older=True)
    assert (back["first_id"], back["last_id"], back["has_more"]) == (newest_first[2], newest_first[3], False)
    some = list_objects(store, ALICE, ListQuery.read([("ids[]", ids[0]), ("ids[]", "file_none")]), older=False)
    assert ([one["id"] for one in some["data"]], some["next_page"]) == ([ids[0]], None)  # type: ignore[attr-defined]
    store.close()


async def test_uploads_cannot_be_downloaded_and_files_made_by_code_can(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "files")
    upload = await store.add(ALICE, "upload.txt", None, pieces(b"x"))
    made = await store.add(ALICE, "made.txt", None, pieces(b"x"), downloadable=True)
    with pytest.raises(FileNotDownloadable) as refused:
        downloadable(store, ALICE, upload.id)
    assert refused.value.error_code == "file_not_downloadable"
    assert file_object(downloadable(store, ALICE, made.id)) == {
        "id": made.id,
        "type": "file",
        "filename": "made.txt",
        "mime_type": "text/plain",
        "size_bytes": 1,
        "created_at": file_object(made)["created_at"],
        "downloadable": True,
        "expires_at": file_object(made)["expires_at"],
    }
    store.close()


@pytest.mark.parametrize(
    ("given", "mime_type", "kept"),
    [
        ("../../etc/passwd", None, "passwd"),
        ("C:\\Users\\a\\b.txt", None, "b.txt"),
        ("", "image/png", "unnamed.png"),
        ("..", None, "unnamed"),
        ("a\nb\0c\u202e.txt", None, "a_b_c_.txt"),
        ("é" * 200 + ".csv", None, "é" * 125 + ".csv"),
    ],
)
def test_names_that_others_chose_are_made_harmless(given: str, mime_type: str | None, kept: str) -> None:
    assert clean_name(given, mime_type) == kept


def test_a_name_that_is_taken_gets_a_number() -> None:
    assert distinct("a.csv", {"a.csv", "a-2.csv"}) == "a-3.csv"
    assert distinct(".env", {".env"}) == ".env-2"


def test_types_come_from_the_name_when_nothing_better_was_said() -> None:
    assert mime_type_of("a.png", "application/octet-stream") == "image/png"
    assert mime_type_of("a.png", "text/plain; charset=utf-8") == "text/plain"
    assert mime_type_of("a", "text/plain\r\nset-cookie: x") == "application/octet-stream"
    assert mime_type_of("a.tar.gz", None) == "application/octet-stream"
