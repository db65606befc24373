"""What a worker of the server can still do once it is locked down: its work, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.isolation.own_processes import landlock

_FILES, _TCP, _SIGNALS = 1, 4, 6  # versions of Landlock that brought them

_LOCKED_DOWN = """
import ctypes, json, os, signal, socket, sqlite3, sys
from ramet.doors.http.processes.confined_worker import lock_down
from ramet.doors.http.processes.introducer import start_introducer

state, secret, outside_port, other_pid = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
bus = state + "/../bus"  # such as that of a desktop session, which starts programs
line = start_introducer(state + "/listening.sock")
lock_down(state)
told = {}

def attempt(name):
    def decorate(act):
        try:
            told[name] = act()
        except OSError as error:
            told[name] = type(error).__name__
        except Exception as error:
            told[name] = repr(error)
    return decorate

"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """What a program of the same user could read, such as a private key in a home folder."""
    file = tmp_path / ".ssh" / "id_ed25519"
    file.parent.mkdir()
    file.write_text("private")
    return file


@pytest.fixture
def outside() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def needs(version: int) -> None:
    if landlock.version() < version:
        missing = f"Landlock {version} is missing, there is {landlock.version()}"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)


@pytest.fixture
def attempts(state: Path, secret: Path, outside: socket.socket) -> Iterator[dict[str, object]]:
    """What each attempt of a process that has locked itself down came to."""
    source = _LOCKED_DOWN + textwrap.dedent("""
        @attempt("write to /etc/passwd")
        def _():
            return os.open("/etc/passwd", os.O_WRONLY | os.O_APPEND)

        @attempt("read /etc/passwd")
        def _():
            return open("/etc/passwd").read(1)

        @attempt("read a private key")
        def _():
            return open(secret).read()

        @attempt("list a home")
        def _():
            return os.listdir(os.path.dirname(secret))

        @attempt("make a file beside the state")
        def _():
            return open(state + "/../new", "w").name

        @attempt("write to a module")
        def _():
            return os.open(os.__file__, os.O_WRONLY)  # and no more: should it work, nothing must be left behind

        @attempt("make a link in the state")
        def _():
            return os.symlink("/etc/shadow", state + "/link")

        @attempt("take the engine's place")
        def _():
            return socket.socket(socket.AF_UNIX).bind(state + "/engine.sock")

        @attempt("execute")
        def _():
            return os.execv("/bin/sh", ["sh", "-c", "exit 0"])

        @attempt("execute the interpreter")
        def _():
            return os.execv(sys.executable, [sys.executable, "-c", ""])

        @attempt("connect by TCP")
        def _():
            return socket.create_connection(("127.0.0.1", outside_port)).getpeername()

        @attempt("bind a TCP port")
        def _():
            return socket.create_server(("127.0.0.1", 0)).getsockname()

        @attempt("send by UDP")
        def _():
            return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", outside_port))

        @attempt("speak with the kernel's tables")
        def _():
            return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).getsockname()

        @attempt("enter a user namespace")
        def _():
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
                raise OSError(ctypes.get_errno(), "unshare")
            return "entered"

        @attempt("start a thread and a process")
        def _():
            import threading
            threading.Thread(target=lambda: told.update(thread="ran")).start()
            child = os.fork()
            if child == 0:
                os._exit(5)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        @attempt("kill another process of the same user")
        def _():
            return os.kill(other_pid, signal.SIGTERM)

        @attempt("trace another process of the same user")
        def _():
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.ptrace(16, other_pid, 0, 0) != 0:  # PTRACE_ATTACH
                raise OSError(ctypes.get_errno(), "ptrace")
            return "attached"

        @attempt("read another's memory")
        def _():
            return open(f"/proc/{other_pid}/environ").read()

        @attempt("signal itself")
        def _():
            return os.kill(os.getpid(), 0)

        @attempt("keep a database")
        def _():
            database = sqlite3.connect(state + "/ramet.db")
            database.execute("pragma journal_mode = wal")
            with database:
                database.execute("create table t (x)")
                database.execute("insert into t values (41)")
            found = database.execute("select x + 1 from t").fetchone()[0]
            database.close()
            return found

        @attempt("import late")
        def _():
            import decimal, wsgiref.util, xml.dom.minidom
            return str(decimal.Decimal("4.2"))

        @attempt("print a traceback with its source")
        def _():
            import traceback
            try:
                json.loads("{")
            except ValueError:
                return "raise JSONDecodeError" in traceback.format_exc() or "obj, end" in traceback.format_exc()

        @attempt("be introduced to the engine")
        def _():
            line.send(b"1")
            _, descriptors, _, _ = socket.recv_fds(line, 1, 1)
            with socket.socket(fileno=descriptors[0]) as connection:
                return connection.recv(10).decode()

        @attempt("connect to the session bus")
        def _():
            libc = ctypes.CDLL(None, use_errno=True)
            one, _ = socket.socketpair()
            address = b"\\1\\0" + os.fsencode(bus) + b"\\0"
            if libc.connect(one.fileno(), address, len(address)) != 0:
                raise OSError(ctypes.get_errno(), "connect")
            return "connected"

        @attempt("open a unix socket")
        def _():
            return socket.socket(socket.AF_UNIX).fileno()

        @attempt("send a datagram to a path")
        def _():
            return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", bus)

        @attempt("limit another process")
        def _():
            import resource
            return resource.prlimit(other_pid, resource.RLIMIT_CPU, (0, 0))

        @attempt("limit itself")
        def _():
            import resource
            return resource.prlimit(0, resource.RLIMIT_CORE, (0, 0)) is not None

        @attempt("slow another process down")
        def _():
            return os.setpriority(os.PRIO_PROCESS, other_pid, 19)

        @attempt("hold another process on one processor")
        def _():
            return os.sched_setaffinity(other_pid, {0})

        @attempt("share memory with others")
        def _():
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.shmget(1, 4096, 0o1600) < 0:
                raise OSError(ctypes.get_errno(), "shmget")
            return "shared"

        print(json.dumps(told))
    """)
    with (
        subprocess.Popen(["sleep", "600"]) as other,
        socket.socket(socket.AF_UNIX) as engine,
        socket.socket(socket.AF_UNIX) as bus,
    ):
        bus.bind(str(state.parent / "bus"))
        bus.listen()
        engine.bind(str(state / "listening.sock"))
        engine.listen()
        port = str(outside.getsockname()[1])
        process = subprocess.Popen(
            [sys.executable, "-c", source, str(state), str(secret), port, str(other.pid)], stdout=subprocess.PIPE
        )
        try:
            engine.settimeout(60)
            connection, _ = engine.accept()
            connection.sendall(b"engine")
            connection.close()
            out, _ = process.communicate(timeout=60)
            assert process.returncode == 0
            assert other.poll() is None
            yield json.loads(out)
        finally:
            process.kill()
            other.kill()


def test_a_locked_down_process_can_do_its_work(attempts: dict[str, object]) -> None:
    assert attempts["keep a database"] == 42
    assert attempts["import late"] == "4.2"
    assert attempts["print a traceback with its source"] is True
    assert attempts["be introduced to the engine"] == "engine"
    assert attempts["limit itself"] is True
    assert attempts["signal itself"] is None
    assert attempts["start a thread and a process"] == 5
    assert attempts["thread"] == "ran"


def test_a_locked_down_process_reads_and_writes_no_files_of_the_host(attempts: dict[str, object]) -> None:
    needs(_FILES)
    for what in (
        "write to /etc/passwd",
        "read /etc/passwd",
        "read a private key",
        "list a home",
        "make a file beside the state",
        "write to a module",
        "make a link in the state",
        "take the engine's place",
        "read another's memory",
    ):
        assert attempts[what] == "PermissionError", what


def test_a_locked_down_process_executes_nothing(attempts: dict[str, object]) -> None:
    needs(_FILES)
    assert attempts["execute"] == "PermissionError"
    assert attempts["execute the interpreter"] == "PermissionError"


def test_a_locked_down_process_reaches_nobody_by_tcp(attempts: dict[str, object]) -> None:
    needs(_TCP)
    assert attempts["connect by TCP"] == "PermissionError"
    assert attempts["bind a TCP port"] == "PermissionError"


def test_a_locked_down_process_reaches_nobody_in_another_way(attempts: dict[str, object]) -> None:
    for what in (
        "send by UDP",
        "speak with the kernel's tables",
        "enter a user namespace",
        "connect to the session bus",
        "open a unix socket",
        "send a datagram to a path",
        "share memory with others",
    ):
        assert attempts[what] == "PermissionError", what


def test_a_locked_down_process_touches_no_other_process(attempts: dict[str, object]) -> None:
    needs(_SIGNALS)
    assert attempts["kill another process of the same user"] == "PermissionError"
    assert attempts["trace another process of the same user"] == "PermissionError"


def test_a_locked_down_process_has_no_say_in_how_others_run(attempts: dict[str, object]) -> None:
    for what in ("limit another process", "slow another process down", "hold another process on one processor"):
        assert attempts[what] == "PermissionError", what


def test_a_locked_down_process_has_no_capability_and_gets_none(state: Path) -> None:
    source = (
        "import sys; from ramet.isolation.own_processes import powers\n"
        "powers.drop_capabilities(); powers.hide_memory()\n"
        "print(open('/proc/self/status').read())"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    if os.geteuid() == 0:
        assert int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
