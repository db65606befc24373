"""What a sandbox is shown of the host has inodes of its own: no watch, lock, socket or FIFO meets the host's."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ramet
from ramet import Mount, Sandbox
from ramet.isolation.files.skeleton import GUEST_FOLDER
from tests.walls.attempts import armed, value

_IN_OPEN = 0x20
_SECONDS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the host: one that everybody may read, so that it can be shown on every kernel."""
    path = tmp_path_factory.mktemp("shown")
    path.chmod(0o755)
    (path / "file").write_text("of the host")
    return path


@pytest.fixture(scope="module")
def one(folder: Path) -> Iterator[Sandbox]:
    with Sandbox(mounts={"/data": folder}) as sandbox:
        yield armed(sandbox)


@pytest.fixture(scope="module")
def other(folder: Path) -> Iterator[Sandbox]:
    with Sandbox(mounts={"/data": folder}) as sandbox:
        yield armed(sandbox)


_TREES = ["system", "mount", "interpreter", "guest"]


def _file_of(tree: str, folder: Path) -> tuple[str, Path]:
    """A file of each kind of tree: its path in a sandbox, and on the host."""
    guest = Path(ramet.__file__).resolve().parent.with_name("ramet_guest") / "__init__.py"
    library = Path(os.path.realpath(os.__file__))
    return {
        "system": ("/usr/bin/env", Path("/usr/bin/env")),
        "mount": ("/data/file", folder / "file"),
        "interpreter": (str(library), library),
        "guest": (f"{GUEST_FOLDER}/__init__.py", guest),
    }[tree]


@pytest.mark.parametrize("tree", _TREES)
def test_who_uses_a_file_is_told_to_nobody_else(one: Sandbox, other: Sandbox, folder: Path, tree: str) -> None:
    inside, outside = _file_of(tree, folder)
    watch = (
        f"watching = _c.inotify_init1(os.O_NONBLOCK); _c.inotify_add_watch(watching, {inside.encode()!r}, {_IN_OPEN})"
    )
    assert value(one, watch) > 0
    outside.read_bytes()
    with outside.open("rb"):
        pass
    assert value(other, f"len(reading({inside!r})) > 0") is True
    assert value(one, "refusal(os.read, watching, 65536)") == "EAGAIN"
    own = f"os.close(os.open({inside!r}, os.O_RDONLY)); len(os.read(watching, 65536)) // 16"
    assert value(one, own) == 1, "its own use of the file is seen"
    assert value(one, "os.close(watching)") is None


@pytest.mark.parametrize("tree", _TREES)
def test_a_lock_is_met_by_nobody_else(one: Sandbox, other: Sandbox, folder: Path, tree: str) -> None:
    inside, outside = _file_of(tree, folder)
    lock = f"locked = os.open({inside!r}, os.O_RDONLY); fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    assert value(one, lock) is None
    assert value(other, lock) is None
    with outside.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    for sandbox in (one, other):
        assert value(sandbox, "os.close(locked)") is None


def test_a_record_lock_holds_up_nobody_on_the_host(one: Sandbox, folder: Path) -> None:
    assert value(one, "locked = open('/data/file'); fcntl.lockf(locked, fcntl.LOCK_SH | fcntl.LOCK_NB)") is None
    with (folder / "file").open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert value(one, "locked.close()") is None


_KINDS = {"stream": socket.SOCK_STREAM, "datagram": socket.SOCK_DGRAM, "packets": socket.SOCK_SEQPACKET}


@pytest.mark.parametrize("kind", _KINDS)
def test_a_socket_of_the_host_is_not_reached(one: Sandbox, folder: Path, kind: str) -> None:
    path = folder / f"{kind}.sock"
    with contextlib.closing(socket.socket(socket.AF_UNIX, _KINDS[kind])) as service:
        service.bind(str(path))
        path.chmod(0o777)
        if kind != "datagram":
            service.listen()
        ways = f"refusal(socket.socket(socket.AF_UNIX, {int(_KINDS[kind])}).connect, '/data/{path.name}')"
        assert value(one, ways) == "ECONNREFUSED"
        [child] = one.fork(1)
        with child:
            assert value(child, ways) == "ECONNREFUSED"
        if kind == "datagram":
            send = f"refusal(socket.socket(socket.AF_UNIX, 2).sendto, b'x', '/data/{path.name}')"
            assert value(one, send) == "ECONNREFUSED"
        assert select.select([service], [], [], 0)[0] == []


def test_a_fifo_of_the_host_is_another_one_inside(one: Sandbox, folder: Path) -> None:
    path = folder / "fifo"
    os.mkfifo(path)
    path.chmod(0o666)
    ours = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        assert value(one, "refusal(os.open, '/data/fifo', os.O_WRONLY | os.O_NONBLOCK)") == "ENXIO", "nobody reads it"
        os.write(ours, b"for the host")
        assert value(one, "os.read(os.open('/data/fifo', os.O_RDONLY | os.O_NONBLOCK), 100)") == b""
        assert os.read(ours, 100) == b"for the host"
    finally:
        os.close(ours)


def test_what_is_shown_as_it_is_is_told(one: Sandbox) -> None:
    assert str(one.info().walls["files"]).startswith("overlays")


# What the host changes in a folder that is shown


def test_files_that_come_later_are_seen_by_the_next_cell(one: Sandbox, folder: Path) -> None:
    assert value(one, "os.path.exists('/data/later'), os.path.exists('/data/new/deep')") == (False, False)
    (folder / "later").write_text("1")
    (folder / "new").mkdir()
    (folder / "new/deep").write_text("2")
    assert value(one, "reading('/data/later'), reading('/data/new/deep')") == (b"1", b"2")


def test_a_file_that_is_replaced_or_removed_is_seen_by_the_next_cell(one: Sandbox, folder: Path) -> None:
    """As editors and version control write: another file is renamed to the same name."""
    path = folder / "replaced"
    for turn in range(3):
        (folder / "replacement").write_text(f"turn {turn}")
        (folder / "replacement").replace(path)
        assert value(one, "reading('/data/replaced')") == f"turn {turn}".encode()
        assert one.files.read("/data/replaced") == f"turn {turn}".encode()
    path.write_text("in place")
    assert value(one, "reading('/data/replaced')") == b"in place"
    path.unlink()
    assert value(one, "os.path.exists('/data/replaced')") is False


def test_file_calls_see_what_is_there_now(one: Sandbox, folder: Path) -> None:
    assert not one.files.exists("/data/for-a-call")
    (folder / "for-a-call").write_text("now")
    assert one.files.exists("/data/for-a-call")
    assert one.download("/data/for-a-call") == b"now"


def test_a_cell_that_waits_for_a_file_sees_it_come(one: Sandbox, folder: Path) -> None:
    code = """
until = time.monotonic() + 60
while not (found := os.path.exists('/data/signal')) and time.monotonic() < until:
    if not os.path.exists('/tmp/waiting'): open('/tmp/waiting', 'w').close()
    time.sleep(0.02)
found
"""
    waiting = threading.Thread(target=lambda: seen.append(value(one, code, timeout=90)))
    seen: list[object] = []
    waiting.start()
    for _ in range(1500):
        if one.files.exists("/tmp/waiting"):
            break
        threading.Event().wait(0.02)
    (folder / "signal").touch()
    waiting.join(100)
    assert seen == [True]


@pytest.mark.deep("load")
def test_a_sandbox_that_has_the_kernel_remember_many_names_holds_up_no_neighbour(folder: Path, other: Sandbox) -> None:
    with Sandbox(mounts={"/data": folder}) as sandbox:
        armed(sandbox)
        code = "for number in range(200_000): _ = os.path.exists(f'/data/{number}')"
        assert value(sandbox, code, timeout=180) is None
        assert value(other, "6 * 7") == 42
        assert value(sandbox, "reading('/data/file')") == b"of the host"


# Copies


def test_open_files_of_shown_trees_go_on_in_copies(one: Sandbox, folder: Path) -> None:
    (folder / "read-on").write_bytes(b"0123456789" * 1000)
    code = """
system = open('/usr/bin/env', 'rb'); magic = system.read(4)
data = open('/data/read-on', 'rb'); _ = data.read(7)
mapped = mmap.mmap(data.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
inside = os.open('/usr/lib', os.O_RDONLY | os.O_DIRECTORY)
fcntl.flock(data, fcntl.LOCK_EX)
"""
    assert value(one, code) is None
    look = (
        "(magic, system.tell(), data.read(3), data.tell(), mapped[5:9], len(os.listdir(inside)) > 0,"
        " refusal(fcntl.flock, os.open('/data/read-on', os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB))"
    )
    expected = (b"\x7fELF", 4, b"789", 10, b"5678", True, "EAGAIN")
    snapshot = one.snapshot()
    children = one.fork(2)
    try:
        with Sandbox(template=snapshot) as restored:
            assert [value(each, look) for each in (*children, restored)] == [expected] * 3
        assert value(one, look) == expected
        [grandchild] = children[0].fork(1)
        with grandchild:
            assert value(grandchild, "data.seek(7), " + look) == (7, expected)
    finally:
        for child in children:
            child.close()
        snapshot.close()


# Writable folders are the host's own


def test_a_writable_folder_is_the_hosts_own_with_all_that_is_in_it(tmp_path: Path) -> None:
    """As the documents say: who shows a folder writable shows its sockets too."""
    tmp_path.chmod(0o777)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as service:
        service.bind(str(tmp_path / "service.sock"))
        (tmp_path / "service.sock").chmod(0o777)
        service.listen()
        service.settimeout(_SECONDS)
        with Sandbox(mounts={"/data": Mount(tmp_path, writable=True)}) as sandbox:
            armed(sandbox)
            assert value(sandbox, "s = socket.socket(socket.AF_UNIX); s.connect('/data/service.sock')") is None
            service.accept()[0].close()


def test_programs_of_the_system_run_from_the_overlay(one: Sandbox) -> None:
    assert value(one, "subprocess.run(['env', 'true']).returncode, os.access('/usr/bin/env', os.W_OK)") == (0, False)
    assert subprocess.run(["env", "true"], check=False).returncode == 0
