"""File calls work from outside on a tree that hostile code changes at the same time."""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet import FileError, RametError, Sandbox
from tests.conftest import Neighbour
from tests.walls.attempts import armed, value

Check = Callable[[], None]

_SPECIAL = {
    "fifo": "os.mkfifo('/tmp/it')",
    "socket": "s = socket.socket(socket.AF_UNIX); s.bind('/tmp/it')",
    "folder": "os.mkdir('/tmp/it')",
    "null": "os.symlink('/dev/null', '/tmp/it')",
    "zero": "os.symlink('/dev/zero', '/tmp/it')",
    "random": "os.symlink('/dev/random', '/tmp/it')",
    "terminal": "os.symlink('/dev/tty', '/tmp/it')",
    "terminal_maker": "os.symlink('/dev/ptmx', '/tmp/it')",
    "loop": "os.symlink('/tmp/it', '/tmp/it')",
    "kernel_file": "os.symlink('/proc/version', '/tmp/it')",
    "kernel_setting": "os.symlink('/proc/sys/kernel/core_pattern', '/tmp/it')",
}
_READ_ERRORS = {
    "fifo": errno.EPERM,
    "socket": errno.ENXIO,
    "folder": errno.EISDIR,
    "terminal": errno.ENXIO,
    "loop": errno.ELOOP,
}


@pytest.mark.parametrize("kind", _SPECIAL)
def test_only_regular_files_are_read(kind: str, attacker: Sandbox, neighbour_still_answers: Check) -> None:
    assert attacker.run_code(_SPECIAL[kind]).ok
    with pytest.raises(FileError) as refused:
        attacker.download("/tmp/it")
    assert refused.value.errno == _READ_ERRORS.get(kind, errno.EPERM)
    neighbour_still_answers()


@pytest.mark.parametrize("kind", _SPECIAL)
def test_only_regular_files_are_written(kind: str, attacker: Sandbox, neighbour_still_answers: Check) -> None:
    assert attacker.run_code(_SPECIAL[kind]).ok
    with pytest.raises(FileError) as refused:
        attacker.upload(b"x", "/tmp/it")
    expected = {**_READ_ERRORS, "fifo": errno.ENXIO, "kernel_setting": errno.EROFS}.get(kind, errno.EPERM)
    assert refused.value.errno in (expected, errno.EACCES if kind.startswith("kernel") else expected)
    neighbour_still_answers()


def test_a_fifo_that_somebody_writes_is_not_read_either(attacker: Sandbox, neighbour_still_answers: Check) -> None:
    attacker.run_code("os.mkfifo('/tmp/it'); both = os.open('/tmp/it', os.O_RDWR); os.write(both, b'x')")
    for call in (lambda: attacker.files.read("/tmp/it"), lambda: attacker.files.write("/tmp/it", b"y")):
        with pytest.raises(PermissionError):
            call()
    neighbour_still_answers()


@pytest.mark.parametrize(
    "path",
    ["/proc/self/environ", "/proc/self/mem", "/proc/self/maps", "/proc/thread-self/status", "/proc/self/root/etc/hosts",
     "/proc/self/fd/3", "/proc/self/exe", "/proc/self/cwd/x", "/proc/mounts"],
)  # fmt: skip
def test_paths_of_the_reading_process_itself_do_not_exist(sandbox: Sandbox, path: str) -> None:
    """The engine is not in the sandbox's /proc: there is no `self` for it there."""
    with pytest.raises(FileNotFoundError):
        sandbox.download(path)


@pytest.mark.parametrize(
    "path",
    [
        "/proc/1/environ",
        "/proc/1/root/etc/passwd",
        "/proc/1/cwd/etc/passwd",
        "/proc/1/exe",
        "/proc/1/status",
        "/proc/1/fd/3",
    ],
)
def test_paths_of_the_init_lead_nowhere(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(FileError) as refused:
        sandbox.download(path)
    assert refused.value.errno in (errno.ELOOP, errno.EPERM, errno.EACCES)


def test_magic_links_of_the_repl_are_not_followed(sandbox: Sandbox) -> None:
    pid = sandbox.info().pid
    for path in ("root/etc/passwd", "cwd/x", "exe", "fd/0", "ns/mnt"):
        with pytest.raises(FileError) as refused:
            sandbox.download(f"/proc/{pid}/{path}")
        assert refused.value.errno == errno.ELOOP


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("outside") / f"{uuid.uuid4()}.txt"
    path.write_text("the host's")
    return path


_LINKS = ["", "/proc/1/root", "/proc/self/root", "../../../../../../../..", "/proc/1/cwd", "/dev/fd/../../.."]


@pytest.mark.parametrize("way", _LINKS)
def test_a_link_leads_to_the_sandbox_and_not_to_the_host(attacker: Sandbox, secret: Path, way: str) -> None:
    attacker.run_code(
        f"os.symlink({way + str(secret)!r}, '/tmp/file'); os.symlink({way + str(secret.parent)!r}, '/tmp/folder')"
    )
    for path in ("/tmp/file", f"/tmp/folder/{secret.name}"):
        with pytest.raises(FileError) as refused:
            attacker.files.read(path)
        assert refused.value.errno in (errno.ENOENT, errno.ELOOP, errno.EACCES)
    try:
        attacker.files.write("/tmp/file", b"overwritten")
        attacker.files.remove(f"/tmp/folder/{secret.name}")
    except RametError:
        pass
    assert secret.read_text() == "the host's"


def test_dots_do_not_lead_out(sandbox: Sandbox, secret: Path) -> None:
    for path in ("/" + "../" * 40 + str(secret).lstrip("/"), "../" * 40 + str(secret).lstrip("/")):
        with pytest.raises(FileNotFoundError):
            sandbox.files.read(path)
        with pytest.raises(FileNotFoundError):
            sandbox.files.list(path)


@pytest.mark.parametrize("target", ["/proc/1/root", "/", "/proc/self/root", "../../../../.."])
def test_a_folder_that_is_swapped_for_a_link_all_the_time_never_leads_out(
    attacker: Sandbox, secret: Path, target: str, neighbour_still_answers: Check
) -> None:
    """renameat2 with RENAME_EXCHANGE: there is always something at the path, now a folder, now a link."""
    outside = str(secret.parent)
    attacker.run_code(f"""
os.makedirs('/tmp/real{outside}'); open('/tmp/real{secret}', 'w').write('the sandbox\\'s')
os.symlink({target!r}, '/tmp/link')
def swap():
    while not os.path.exists('/tmp/stop'):
        _c.renameat2(-100, b'/tmp/real', -100, b'/tmp/link', 2)
swapping = threading.Thread(target=swap); swapping.start()
""")
    read, refusals = set(), set()
    for number in range(150):
        for folder in ("real", "link"):
            try:
                read.add(attacker.files.read(f"/tmp/{folder}{secret}"))
                attacker.files.write(f"/tmp/{folder}{secret}", b"the sandbox's")
                attacker.files.write(f"/tmp/{folder}{outside}/new-{number}", b"x")
                attacker.files.remove(f"/tmp/{folder}{outside}/new-{number}")
            except FileError as refused:
                refusals.add(refused.errno)
    attacker.files.write("/tmp/stop", b"")
    assert read <= {b"the sandbox's", b""}
    assert refusals <= {errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EAGAIN, errno.EEXIST, errno.EXDEV}
    assert [entry.name for entry in secret.parent.iterdir()] == [secret.name]
    assert secret.read_text() == "the host's"
    neighbour_still_answers()


def test_a_tree_that_is_swapped_while_it_is_removed_costs_nothing_outside(attacker: Sandbox) -> None:
    """What the link points to must survive a recursive removal of the folder the link takes the place of."""
    attacker.run_code("""
os.makedirs('/root/keep/inner'); open('/root/keep/inner/file', 'w').write('kept')
os.symlink('/root/keep', '/tmp/link')
def swap():
    while not os.path.exists('/tmp/stop'):
        os.makedirs('/tmp/victim/inner', exist_ok=True)
        _c.renameat2(-100, b'/tmp/victim/inner', -100, b'/tmp/link', 2)
def guarded():
    while not os.path.exists('/tmp/stop'):
        try: swap()
        except OSError: pass
swapping = threading.Thread(target=guarded); swapping.start()
""")
    for _ in range(100):
        try:
            attacker.files.remove("/tmp/victim", recursive=True)
        except FileError:
            pass
    attacker.files.write("/tmp/stop", b"")
    assert attacker.files.read("/root/keep/inner/file") == b"kept"


def test_a_deep_tree_is_removed_or_refused_but_never_ends_the_engine(attacker: Sandbox, neighbour: Neighbour) -> None:
    attacker.run_code(
        "os.chdir('/tmp')\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\nos.chdir('/root')", timeout=20
    )
    with contextlib.suppress(FileError):
        attacker.files.remove("/tmp/d", recursive=True)
    neighbour.assert_unharmed()


def test_names_of_any_bytes_are_listed(attacker: Sandbox) -> None:
    attacker.run_code(
        "os.mkdir('/tmp/odd')\n"
        "for name in (b'\\xff\\xfe', b'new\\nline', b'\"quote', b'\\x01'): open(b'/tmp/odd/' + name, 'w').close()"
    )
    assert len(attacker.files.list("/tmp/odd")) == 4


def test_a_file_that_grows_without_end_is_not_read_without_end(
    attacker: Sandbox, neighbour_still_answers: Check
) -> None:
    """A sparse file of a terabyte: a stream gives its first pieces, and closing it ends the call."""
    attacker.run_code("os.truncate(os.open('/tmp/huge', os.O_CREAT | os.O_RDWR), 1 << 40)")
    pieces = attacker.files.read_stream("/tmp/huge")
    assert next(iter(pieces)).count(0) > 0
    pieces.close()
    neighbour_still_answers()


def test_a_replaced_spill_folder_leads_nowhere(neighbour_still_answers: Check) -> None:
    """Long output is written by the engine to a folder that the sandbox may replace."""
    for trick in (
        "os.symlink('/proc/1/root/tmp', '/var/tmp/ramet')",
        "os.mkfifo('/var/tmp/ramet')",
        "os.symlink('/usr/bin', '/var/tmp/ramet')",
    ):
        with Sandbox() as sandbox:
            armed(sandbox)
            result = sandbox.run_code(f"{trick}\nfor _ in range(12): os.write(1, b'x' * (1 << 20))", timeout=30)
            assert result.exit_code == 0
            assert result.truncated is not None
            assert result.truncated.stdout_path is None
    neighbour_still_answers()


def test_the_running_interpreters_file_carries_nothing_to_a_neighbour(attacker: Sandbox) -> None:
    """It is a file of the tree that the template booted from, which all of its sandboxes keep."""
    attempts = "refusal(os.chmod, '/proc/self/exe', 0o711), refusal(os.setxattr, '/proc/self/exe', 'user.x', b'letter')"
    assert set(value(attacker, attempts)) <= {"EROFS", "EPERM"}
    with Sandbox() as other:
        assert value(armed(other), "refusal(os.getxattr, '/proc/self/exe', 'user.x')") in ("ENODATA", "EOPNOTSUPP")
