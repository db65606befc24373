"""Nothing of the host's files can be reached but the system folders and the interpreter, and those only for reading."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest

from ramet import FileError, Mount, Sandbox
from ramet.isolation.files.interpreter import find
from tests.walls.attempts import armed, attempt, value


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A file on the host, and the words in it."""
    words = f"secret-{uuid.uuid4()}"
    path = tmp_path_factory.mktemp("host") / f"{words}.txt"
    path.write_text(words)
    path.chmod(0o644)
    return path, words


_WAYS = [
    "",
    "/proc/self/root",
    "/proc/thread-self/root",
    "/proc/self/cwd/../../../../..",
    "/proc/self/task/../root",
    "/proc/self/fd/0/../../..",
    "/../../../..",
    "/usr/../..",
    "/.ramet/ramet_guest/../../..",
    "/host",
    "/mnt",
    "/trees/0",
    "/up/root",
    "/new",
]


@pytest.mark.promise("wall-host-files")
@pytest.mark.parametrize("way", _WAYS)
def test_a_file_of_the_host_is_not_there(walled: Sandbox, secret: tuple[Path, str], way: str) -> None:
    path, _ = secret
    assert value(walled, f"refusal(reading, {way + str(path)!r})") in ("ENOENT", "ENOTDIR")


def test_a_file_of_the_host_is_not_there_behind_the_init(walled: Sandbox, secret: tuple[Path, str]) -> None:
    path, _ = secret
    assert value(walled, f"refusal(reading, '/proc/1/root{path}')") == "EACCES"


def test_no_descriptor_or_map_leads_to_the_file(walled: Sandbox, secret: tuple[Path, str]) -> None:
    path, words = secret
    search = f"""
found = []
for top, folders, names in os.walk('/proc/self', followlinks=False):
    if '/task/' in top or top.endswith('/net'):
        folders.clear()
    for name in names:
        full = os.path.join(top, name)
        if os.path.islink(full) and {words!r} in refusal(os.readlink, full):
            found.append(full)
found + [line for line in open('/proc/self/mountinfo') if {words!r} in line]
"""
    assert value(walled, search) == []


def test_the_name_of_the_secret_is_nowhere_in_the_writable_places(walled: Sandbox, secret: tuple[Path, str]) -> None:
    path, words = secret
    places = "'/tmp', '/var', '/run', '/home', '/mnt', '/media', '/srv', '/opt', '/dev', '/etc'"
    search = f"subprocess.run(['find', {places}, '-name', '*{words}*'], capture_output=True).stdout"
    assert value(walled, search) == b""


def on_the_way_to_the_interpreter(folder: str) -> set[str]:
    """What a sandbox shows in a folder because the interpreter lies below it: a clone and its environment may."""
    found = find(sys.executable)
    places = [Path(place) for place in (*found.trees, *(at for at, _ in found.links))]
    return {place.relative_to(folder).parts[0] for place in places if Path(folder) in place.parents}


@pytest.mark.parametrize("folder", ["/home", "/run", "/mnt", "/media", "/srv", "/sys", "/var/log", "/var/lib", "/boot"])
def test_folders_of_the_host_are_empty_or_missing(walled: Sandbox, folder: str) -> None:
    shown = value(walled, f"refusal(os.listdir, {folder!r})")
    assert shown == "ENOENT" or set(shown) == on_the_way_to_the_interpreter(folder)


def test_the_home_folder_of_the_owner_is_not_shown(walled: Sandbox) -> None:
    home = Path.home()
    hidden = {entry.name for entry in home.iterdir()} if home.is_dir() else set()
    # What the sandbox itself has in its home may have the same name, and is not the owner's.
    hidden -= {".local"} | on_the_way_to_the_interpreter(str(home))
    shown = value(walled, f"refusal(os.listdir, {str(home)!r})")
    assert not hidden & set(shown if isinstance(shown, list) else [])


@pytest.mark.parametrize(
    "name", ["shadow", "gshadow", "ssh", "sudoers", "ssl/private", "machine-id", "hostname", "fstab", "crontab"]
)
def test_private_files_of_etc_are_not_copied(walled: Sandbox, name: str) -> None:
    try:
        host = Path("/etc", name).read_bytes() if Path("/etc", name).is_file() else None
    except OSError:
        host = None
    seen = value(walled, f"refusal(reading, '/etc/{name}')")
    assert seen in ("ENOENT", "EISDIR", b"sandbox\n", b"0" * 32 + b"\n")
    assert host is None or seen != host


def test_the_password_file_knows_no_user_of_the_host(walled: Sandbox) -> None:
    users = value(walled, "[line.split(':')[0] for line in open('/etc/passwd')]")
    assert users == ["root", "nobody"]


def test_a_working_folder_that_was_moved_away_leads_nowhere(attacker: Sandbox) -> None:
    """The classic way out of a chroot: keep a descriptor, move the folder, walk up."""
    walk = """
os.makedirs('/tmp/a/b/c'); os.chdir('/tmp/a/b/c'); os.rename('/tmp/a/b/c', '/root/c')
for _ in range(64):
    os.chdir('..')
(os.getcwd(), os.stat('.').st_ino == os.stat('/').st_ino)
"""
    assert value(attacker, walk) == ("/", True)


def test_the_mount_list_names_no_folder_outside_the_sandbox(walled: Sandbox) -> None:
    points = value(walled, "[line.split()[4] for line in open('/proc/self/mountinfo')]")
    interpreter = value(walled, "[sys.prefix, sys.base_prefix]")
    allowed = (
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/.ramet",
        "/dev",
        "/proc",
        *interpreter,
    )
    assert [point for point in points if point != "/" and not point.startswith(allowed)] == []


def test_no_mount_is_shared_with_the_host(walled: Sandbox) -> None:
    assert (
        value(walled, "[line for line in open('/proc/self/mountinfo') if 'shared:' in line or 'master:' in line]") == []
    )


# Read-only trees


@pytest.mark.parametrize("tree", ["/usr/bin", "/usr/lib", "/.ramet/ramet_guest", "/dev"])
def test_nothing_is_created_in_a_read_only_tree(walled: Sandbox, tree: str) -> None:
    answer = value(walled, f"refusal(os.open, '{tree}/ramet-was-here', os.O_CREAT | os.O_WRONLY)")
    assert answer == "EROFS"


_GUEST = "/.ramet/ramet_guest/__main__.py"


@pytest.mark.parametrize("path", ["/usr/bin/env", _GUEST])
@pytest.mark.parametrize(
    "attempted",
    [
        "writing({path!r})",
        "writing({path!r}, flags=os.O_RDWR | os.O_APPEND)",
        "os.truncate({path!r}, 0)",
        "os.unlink({path!r})",
        "os.rename({path!r}, {path!r} + '.old')",
        "os.chmod({path!r}, 0o777)",
        "os.chown({path!r}, 0, 0)",
        "os.utime({path!r}, (0, 0))",
        "os.setxattr({path!r}, 'user.x', b'x')",
        "writing('/proc/self/root' + {path!r})",
        "writing('/proc/thread-self/cwd/..' + {path!r})",
        "writing('/proc/self/fd/%d' % os.open({path!r}, os.O_RDONLY))",
        "writing('/proc/self/fd/%d' % os.open({path!r}, os.O_PATH))",
        "writing('/dev/fd/%d' % os.open({path!r}, os.O_PATH))",
        "os.open('', os.O_WRONLY, dir_fd=os.open({path!r}, os.O_PATH))",
    ],
)
def test_a_read_only_file_cannot_be_changed(walled: Sandbox, path: str, attempted: str) -> None:
    answer = value(walled, f"refusal(lambda: {attempted.format(path=path)})")
    assert answer == ("ENOENT" if "os.open('', " in attempted else "EROFS")


def test_a_read_only_file_cannot_be_written_through_a_symbolic_link(attacker: Sandbox) -> None:
    assert value(attacker, f"os.symlink({_GUEST!r}, '/tmp/link'); refusal(writing, '/tmp/link')") == "EROFS"


def test_a_read_only_file_cannot_be_linked_to_a_writable_place(walled: Sandbox) -> None:
    assert value(walled, f"refusal(os.link, {_GUEST!r}, '/tmp/hard')") == "EXDEV"
    assert (
        value(walled, f"refusal(os.link, '/proc/self/fd/%d' % os.open({_GUEST!r}, os.O_PATH), '/tmp/hard')") == "EXDEV"
    )


def test_a_read_only_file_cannot_be_written_through_shared_memory(walled: Sandbox) -> None:
    code = f"refusal(mmap.mmap, os.open({_GUEST!r}, os.O_RDONLY), 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)"
    assert value(walled, code) == "EACCES"
    protect = f"""
_c.mmap.restype = ctypes.c_void_p
at = _c.mmap(None, ctypes.c_size_t(4096), 1, 1, os.open({_GUEST!r}, os.O_RDONLY), ctypes.c_long(0))
call(10, at, 4096, 3)
"""
    assert value(walled, protect) == "EACCES"


@pytest.mark.parametrize("kind", ["F_RDLCK", "F_WRLCK"])
@pytest.mark.parametrize("path", ["/usr/bin/env", _GUEST])
def test_no_lease_is_taken_on_a_file_of_the_host(walled: Sandbox, path: str, kind: str) -> None:
    """Whoever opens a file under a write lease, on the host too, waits until the holder lets go."""
    assert (
        value(walled, f"refusal(fcntl.fcntl, os.open({path!r}, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.{kind})")
        == "EPERM"
    )


def test_folders_of_the_host_are_not_watched_by_signals(walled: Sandbox) -> None:
    assert (
        value(walled, "refusal(fcntl.fcntl, os.open('/usr/bin', os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)")
        == "EPERM"
    )


def test_what_a_sandbox_writes_over_the_interpreter_is_its_own(attacker: Sandbox) -> None:
    """pip may write there; it writes into a private layer."""
    module = value(attacker, "import textwrap; textwrap.__file__")
    before = Path(module).read_bytes()
    if value(attacker, f"refusal(writing, {module!r}, b'raise SystemExit(9)\\n', os.O_WRONLY | os.O_TRUNC)") != "EROFS":
        assert value(attacker, f"reading({module!r})") == b"raise SystemExit(9)\n"
    assert Path(module).read_bytes() == before
    with Sandbox() as other:
        assert value(armed(other), f"reading({module!r})") == before


# Devices


@pytest.mark.parametrize(
    "kind",
    [
        "S_IFCHR | 0o666, os.makedev(1, 1)",
        "S_IFBLK | 0o666, os.makedev(8, 0)",
        "S_IFBLK | 0o666, os.makedev(254, 0)",
        "S_IFCHR | 0o666, os.makedev(10, 229)",
    ],
)
@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/root"])
def test_no_device_is_made(walled: Sandbox, folder: str, kind: str) -> None:
    assert value(walled, f"import stat; refusal(os.mknod, '{folder}/device', stat.{kind})") == "EPERM"


def test_the_device_folder_is_minimal(walled: Sandbox) -> None:
    assert value(walled, "sorted(os.listdir('/dev'))") == [
        "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero",
    ]  # fmt: skip


def test_there_is_no_terminal(walled: Sandbox) -> None:
    assert value(walled, "refusal(os.open, '/dev/tty', os.O_RDWR)") == "ENXIO"
    assert value(walled, "os.listdir('/dev/pts')") == ["ptmx"]


@pytest.mark.parametrize("name", ["null", "zero", "full", "random", "urandom", "tty"])
def test_devices_keep_their_owner_and_mode(walled: Sandbox, name: str) -> None:
    """They are the host's own nodes."""
    assert value(walled, f"refusal(os.chmod, '/dev/{name}', 0)") == "EPERM"
    assert value(walled, f"refusal(os.chown, '/dev/{name}', 0, 0)") == "EPERM"
    assert value(walled, f"refusal(os.utime, '/dev/{name}', (0, 0))") == "EPERM"


# Shown folders


@pytest.mark.promise("wall-read-only")
def test_a_shown_folder_is_read_only(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("data")
    with Sandbox(mounts={"/data": tmp_path}) as sandbox:
        armed(sandbox)
        assert value(sandbox, "reading('/data/data.txt')") == b"data"
        assert value(sandbox, "refusal(writing, '/data/data.txt')") == "EROFS"
        assert value(sandbox, "refusal(os.mkdir, '/data/folder')") == "EROFS"
        assert value(sandbox, "refusal(os.listdir, '/data/../../' + 'etc/ssh')") == "ENOENT"
        with pytest.raises(FileError) as refused:
            sandbox.files.write("/data/data.txt", b"x")
        assert refused.value.errno == 30
    assert (tmp_path / "data.txt").read_text() == "data"


def test_a_link_in_a_shown_folder_leads_into_the_sandbox_and_not_to_the_host(
    tmp_path: Path, secret: tuple[Path, str]
) -> None:
    path, _ = secret
    (tmp_path / "absolute").symlink_to(path)
    (tmp_path / "relative").symlink_to(Path("../" * 30 + str(path).lstrip("/")))
    (tmp_path / "etc").symlink_to("/etc")
    with Sandbox(mounts={"/data": tmp_path}) as sandbox:
        armed(sandbox)
        assert (
            value(sandbox, "[refusal(reading, '/data/' + name) for name in ('absolute', 'relative')]") == ["ENOENT"] * 2
        )
        assert value(sandbox, "refusal(reading, '/data/etc/passwd').count(b'root')") == 2 + 1
        for name in ("absolute", "relative"):
            with pytest.raises(FileNotFoundError):
                sandbox.files.read(f"/data/{name}")


def test_a_writable_folder_honours_neither_set_id_bits_nor_devices(tmp_path: Path) -> None:
    """Those that lie there already: a sandbox can make none."""
    with Sandbox(mounts={"/data": Mount(tmp_path, writable=True)}) as sandbox:
        look = "[line.split()[5] for line in open('/proc/self/mountinfo') if line.split()[4] == '/data']"
        (options,) = value(sandbox, look)
    assert {"rw", "nosuid", "nodev"} <= set(options.split(","))


def test_a_program_left_in_a_writable_folder_lends_nobody_the_power_of_its_owner(tmp_path: Path) -> None:
    """Its bits could be set by hostile code, and read by another user of the host."""
    with Sandbox(mounts={"/data": Mount(tmp_path, writable=True)}) as sandbox:
        armed(sandbox)
        sandbox.run_code("writing('/data/program', b'#!/bin/sh', os.O_WRONLY | os.O_CREAT)")
        assert attempt(sandbox, "chmod", "b'/data/program', 0o4755") == "EPERM"
        assert attempt(sandbox, "chmod", "b'/data/program', 0o2755") == "EPERM"
        assert attempt(sandbox, "fchmodat", "-100, b'/data/program', 0o6755") == "EPERM"
        assert attempt(sandbox, "fchmodat2", "-100, b'/data/program', 0o6755, 0") == "EPERM"
        assert attempt(sandbox, "open", "b'/data/program2', 0o101, 0o4755") == "EPERM"
        assert attempt(sandbox, "openat", "-100, b'/data/program2', 0o101, 0o4755") == "EPERM"
        assert attempt(sandbox, "creat", "b'/data/program2', 0o4755") == "EPERM"
        assert attempt(sandbox, "mknod", "b'/data/program2', 0o104755, 0") == "EPERM"
        assert attempt(sandbox, "mknodat", "-100, b'/data/program2', 0o104755, 0") == "EPERM"
        assert (
            attempt(sandbox, "openat2", "-100, b'/data/program2', struct.pack('QQQ', 0o101, 0o4755, 0), 24") == "ENOSYS"
        )
    assert [os.stat(entry).st_mode & 0o6000 for entry in tmp_path.iterdir()] == [0]


@pytest.mark.parametrize("source", ["/", "/proc", "/etc"])
def test_where_a_mount_may_lie_is_checked_before_anything_starts(source: str) -> None:
    from ramet import InvalidArgument

    for target in ("/", "/proc", "/proc/1", "/dev", "/usr/lib", "/sys", "//proc", "/data/../proc"):
        with pytest.raises(InvalidArgument, match="mounts"):
            Sandbox(mounts={target: source})
