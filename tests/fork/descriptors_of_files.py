"""Files, folders and devices that a process has open."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import sqlite3
import tempfile

from tests.fork.descriptors_registry import Check, kept, libc, thing


@thing
def a_file_keeps_its_offset_and_duplicates_share_it() -> Check:
    with open("numbers", "w") as file:
        file.write("0123456789" * 10)
    one = os.open("numbers", os.O_RDONLY)
    os.lseek(one, 7, os.SEEK_SET)
    same, other = os.dup(one), os.open("numbers", os.O_RDONLY)
    os.lseek(other, 7, os.SEEK_SET)

    def check() -> None:
        assert os.read(one, 3) == b"789"
        assert os.read(same, 3) == b"012"
        assert os.read(other, 3) == b"789"

    return check


@thing
def a_log_is_appended_to() -> Check:
    log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, b"one\n")

    def check() -> None:
        os.write(log, b"two\n")
        with open("log") as file:
            assert file.read() == "one\ntwo\n"

    return check


@thing
def a_renamed_file_is_the_same_file() -> Check:
    file = os.open("before", os.O_CREAT | os.O_RDWR)
    os.write(file, b"renamed")
    os.rename("before", "after")

    def check() -> None:
        os.pwrite(file, b"R", 0)
        with open("after") as again:
            assert again.read() == "Renamed"

    return check


@thing
def files_of_the_lower_layer_are_open_again() -> Check:
    file = os.open("below", os.O_RDONLY)
    os.lseek(file, 5, os.SEEK_SET)
    with open("below", "rb") as opened:
        memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)

    def check() -> None:
        assert os.read(file, 99) == b"below"
        assert memory[:4] == b"from"
        assert os.path.samestat(os.fstat(file), os.stat("below"))

    return check


@thing
def odd_names_are_names() -> Check:
    names = (b"odd (deleted)", b"new\nline", b"\xff\xfe", b"memfd:odd", b"\\012 back")
    files = {name: os.open(name, os.O_CREAT | os.O_RDWR) for name in names}
    for name, file in files.items():
        os.write(file, name)

    def check() -> None:
        for name, file in files.items():
            assert os.pread(file, 99, 0) == name
            assert os.path.samestat(os.fstat(file), os.stat(name))

    return check


@thing
def a_name_that_went_to_another_file_is_not_followed() -> Check:
    old = os.open("reused", os.O_CREAT | os.O_RDWR)
    os.write(old, b"old")
    os.unlink("reused")
    with open("reused", "w") as file:
        file.write("new")

    def check() -> None:
        assert os.pread(old, 9, 0) == b"old"

    return check


@thing
def a_deleted_file_keeps_its_bytes_and_holes() -> Check:
    file = os.open("gone", os.O_CREAT | os.O_RDWR)
    os.write(file, b"deleted data")
    os.pwrite(file, b"tail", 1 << 22)
    other = os.open("gone", os.O_WRONLY | os.O_APPEND)
    os.unlink("gone")
    os.lseek(file, 3, os.SEEK_SET)

    def check() -> None:
        assert os.read(file, 9) == b"eted data"
        assert os.pread(file, 9, 1 << 22) == b"tail"
        assert os.fstat(file).st_blocks < 100, "the hole was filled"
        os.write(other, b"!")
        assert os.pread(file, 9, 1 << 22) == b"tail!"

    return check


@thing
def a_temporary_file_goes_on() -> Check:
    file = tempfile.TemporaryFile("w+", dir=".")  # noqa: SIM115
    file.write("first\n")
    file.flush()
    kept.append(file)

    def check() -> None:
        file.write("second\n")
        file.seek(0)
        assert file.read() == "first\nsecond\n"

    return check


@thing
def a_file_without_a_name_can_still_get_one() -> Check:
    file = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(file, b"tmpfile")

    def check() -> None:
        name = b"linked-%d" % os.getpid()
        assert not libc.linkat(-100, b"/proc/self/fd/%d" % file, -100, name, 0x400), ctypes.get_errno()
        with open(name) as again:
            assert again.read() == "tmpfile"

    return check


@thing
def folders_and_o_path_are_open_again() -> Check:
    os.mkdir("folder")
    with open("folder/inside", "w") as file:
        file.write("x" * 7)
    folder, name = os.open("folder", os.O_RDONLY | os.O_DIRECTORY), os.open("folder/inside", os.O_PATH)
    os.symlink("inside", "folder/link")
    link = os.open("folder/link", os.O_PATH | os.O_NOFOLLOW)
    os.mkdir("removed")
    removed = os.open("removed", os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir("removed")

    def check() -> None:
        assert sorted(os.listdir(folder)) == ["inside", "link"]
        assert os.fstat(name).st_size == 7
        assert os.readlink("", dir_fd=link) == "inside"
        assert os.listdir(removed) == []
        assert os.fstat(removed).st_nlink == 0

    return check


@thing
def only_what_was_inheritable_is() -> Check:
    with open("inherit", "w"):
        pass
    kept, closed = os.open("inherit", os.O_RDONLY), os.open("inherit", os.O_RDONLY)
    os.set_inheritable(kept, True)

    def check() -> None:
        assert os.get_inheritable(kept)
        assert not os.get_inheritable(closed)

    return check


@thing
def sqlite_goes_on_in_the_middle_of_a_query() -> Check:
    database = sqlite3.connect("data.db")
    database.execute("pragma journal_mode=wal")
    database.execute("create table t(x)")
    database.executemany("insert into t values(?)", [(number,) for number in range(500)])
    database.commit()
    other = sqlite3.connect("data.db")
    cursor = other.execute("select x from t")
    cursor.fetchone()

    def check() -> None:
        assert len(cursor.fetchall()) == 499
        database.execute("insert into t values(1)")
        database.commit()
        assert other.execute("select count(*) from t").fetchone()[0] == 501
        assert database.execute("pragma integrity_check").fetchone()[0] == "ok"

    return check


@thing
def a_logging_handler_goes_on() -> Check:
    handler = logging.FileHandler("app.log")
    handler.emit(logging.makeLogRecord({"msg": "before"}))

    def check() -> None:
        handler.emit(logging.makeLogRecord({"msg": "after"}))
        with open("app.log") as file:
            assert file.read() == "before\nafter\n"

    return check


@thing
def devices_and_proc_are_open_again() -> Check:
    null, random = os.open("/dev/null", os.O_RDWR), os.open("/dev/urandom", os.O_RDONLY)
    status, uptime = os.open("/proc/self/status", os.O_RDONLY), os.open("/proc/uptime", os.O_RDONLY)
    network = os.open("/proc/self/ns/net", os.O_RDONLY)

    def check() -> None:
        assert os.write(null, b"x") == 1
        assert len(os.read(random, 8)) == 8
        assert f"Pid:\t{os.getpid()}\n".encode() in os.pread(status, 4096, 0)
        assert os.pread(uptime, 99, 0)
        assert os.fstat(network).st_ino == os.stat("/proc/self/ns/net").st_ino

    return check
