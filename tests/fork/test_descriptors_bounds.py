"""What a sandbox cannot do to whoever reads its descriptors: everything is bounded, and nothing stays open."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.errors import ForkFailed
from ramet.freezing.descriptors import (
    Lines,
    OpenDescriptors,
    PausedProcess,
    compile_calls,
    read_descriptors,
    read_shared_maps,
)
from ramet.freezing.descriptors.bounds import MOST_BYTES, MOST_DESCRIPTORS, MOST_WATCHED
from ramet.freezing.descriptors.recipes import Dead, NamelessFile


@contextlib.contextmanager
def _stopped(program: str, folder: Path) -> Iterator[PausedProcess]:
    """A process that has run `program`, and stopped."""
    prelude = "import errno, mmap, os, resource, select, signal, socket, struct\n"
    stop = "\nos.kill(os.getpid(), signal.SIGSTOP)"
    command = [sys.executable, "-c", prelude + program + stop]
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    pidfd, root = os.pidfd_open(process.pid), os.open("/", os.O_PATH)
    try:
        deadline = time.monotonic() + 30
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert process.poll() is None, "the program failed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        yield PausedProcess(process.pid, pidfd, root, {process.pid: process.pid}, Lines(1, 1, 1))
    finally:
        os.close(pidfd)
        os.close(root)
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def _nothing_left_open() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


def _nameless(found: OpenDescriptors) -> NamelessFile:
    """The one that the program made: 2 is whatever the test runner gave us."""
    return next(
        each.thing for each in found.descriptions if isinstance(each.thing, NamelessFile) and each.places[0].number > 2
    )


_MANY = "resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)\n"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (f"{_MANY}kept = [os.dup(0) for _ in range({MOST_DESCRIPTORS + 1})]", "descriptors open"),
        (
            f"f = os.open('large', os.O_CREAT | os.O_RDWR)\nos.unlink('large')\nos.write(f, bytes({MOST_BYTES + 1}))",
            "more than can be copied",
        ),
        (
            f"{_MANY}e = [select.epoll() for _ in range(9)]\np = [os.eventfd(0) for _ in range({MOST_WATCHED // 8})]\n"
            "for each in e:\n    for one in p: each.register(one)",
            "watch more than",
        ),
    ],
    ids=["descriptors", "bytes", "watched"],
)
def test_too_much_is_refused_and_nothing_stays_open(tmp_path: Path, program: str, told: str) -> None:
    with _stopped(program, tmp_path) as target, _nothing_left_open(), pytest.raises(ForkFailed, match=told):
        read_descriptors(target)


def test_a_large_hole_costs_nothing(tmp_path: Path) -> None:
    program = "f = os.open('sparse', os.O_CREAT | os.O_RDWR)\nos.unlink('sparse')\nos.pwrite(f, b'end', 1 << 40)"
    with _stopped(program, tmp_path) as target, _nothing_left_open():
        found = read_descriptors(target)
    sparse = _nameless(found)
    assert sparse.size == (1 << 40) + 3
    assert sum(len(extent.data) for extent in sparse.extents) <= 4096


def test_a_path_too_long_to_be_told_is_no_obstacle(tmp_path: Path) -> None:
    program = (
        "for _ in range(30):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\n"
        "f = os.open('deep', os.O_CREAT | os.O_RDWR)\nos.write(f, b'deep down')\nd = os.open('.', os.O_RDONLY)"
    )
    with _stopped(program, tmp_path) as target, _nothing_left_open():
        found = read_descriptors(target)
        assert compile_calls(found, read_shared_maps(target), 7)
    deep = _nameless(found)
    shutil.rmtree(tmp_path / ("d" * 200))
    assert deep.extents[0].data == b"deep down"


def test_a_link_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    """A file that was moved aside, with a link to another one in its place, is not that other one."""
    program = (
        "f = os.open('mine', os.O_CREAT | os.O_RDWR)\nos.write(f, b'mine')\nos.unlink('mine')\n"
        "os.symlink('/etc/passwd', 'mine')"
    )
    with _stopped(program, tmp_path) as target:
        found = read_descriptors(target)
    mine = _nameless(found)
    assert mine.extents[0].data == b"mine"


def test_what_cannot_be_carried_over_is_dead_and_told(tmp_path: Path) -> None:
    program = (
        "import ctypes\nname = b'/ramet-test-%d' % os.getpid()\nlibrary = ctypes.CDLL('librt.so.1')\n"
        "queue = library.mq_open(name, os.O_RDWR | os.O_CREAT, 0o600, None)\nlibrary.mq_unlink(name)\n"
        "init = os.open('/proc/1/status', os.O_RDONLY)"
    )
    with _stopped(program, tmp_path) as target:
        found = read_descriptors(target)
    assert len([each for each in found.descriptions if isinstance(each.thing, Dead)]) == 2
    assert any("ramet-test" in text for text in found.lost)
    assert any("/proc/1/status" in text for text in found.lost)


def test_a_process_that_is_gone_is_a_failed_fork(tmp_path: Path) -> None:
    with _stopped("", tmp_path) as target:
        os.kill(target.pid, signal.SIGKILL)
        os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
        with _nothing_left_open(), pytest.raises(ForkFailed):
            read_descriptors(target)


def test_an_offset_is_left_where_it_is(tmp_path: Path) -> None:
    program = (
        "f = os.open('file', os.O_CREAT | os.O_RDWR)\nos.write(f, b'x' * 9000)\nos.unlink('file')\nos.lseek(f, 5, 0)"
    )
    with _stopped(program, tmp_path) as target:
        facts = [Path(f"/proc/{target.pid}/fdinfo/{name}").read_text() for name in os.listdir(f"/proc/{target.pid}/fd")]
        read_descriptors(target)
        again = [Path(f"/proc/{target.pid}/fdinfo/{name}").read_text() for name in os.listdir(f"/proc/{target.pid}/fd")]
        assert facts == again
