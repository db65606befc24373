"""Programs on terminals in a pod. The engine opens the terminal from outside; `native/enter.c` starts the program."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence

from ramet.errors import NO_ROOM_ERRNOS, InvalidArgument, LimitReached, RametError, SandboxLost
from ramet.isolation.kernel import syscalls
from ramet.isolation.kernel.seccomp import compile_filter
from ramet.isolation.launch import HELPER
from ramet.isolation.pods import Pod, wait_for_end
from ramet.isolation.thread_work import finish
from ramet.protocol.lazy_dataclasses import dataclass

_PTMX = os.makedev(5, 2)  # the character device /dev/ptmx
_DEVPTS = 0x1CD1  # DEVPTS_SUPER_MAGIC
_SLAVE_MAJORS = range(136, 144)  # UNIX98_PTY_SLAVE_MAJOR and the seven after it
_TIOCGPTPEER = 0x5441
_TIOCSPTLCK = 0x40045431
_ENTER_SECONDS = 10.0  # a pod that has used up its CPU quota delays it
_DYING_SECONDS = 2.0
_NO_ROOM = re.compile(r"Resource temporarily|Cannot allocate|No space left|Too many")
# /proc/PID/status must show this: no capability in any set, no way to gain one, and the filter in force.
_POWERLESS = {
    "CapInh": "0" * 16,
    "CapPrm": "0" * 16,
    "CapEff": "0" * 16,
    "CapBnd": "0" * 16,
    "CapAmb": "0" * 16,
    "NoNewPrivs": "1",
    "Seccomp": "2",
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run on a terminal."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str | None  # None: the home folder

    def encode(self) -> bytes:
        """Encode in the format that `native/enter.c` reads."""
        strings = [self.folder or "", str(len(self.arguments)), *self.arguments]
        strings += [f"{name}={value}" for name, value in self.environment.items()]
        return b"".join(os.fsencode(text) + b"\0" for text in strings)


@dataclass(frozen=True, slots=True)
class Started:
    """A program that waits on its terminal to be let run. A child of the engine; `pid` is in the engine's numbering."""

    pid: int
    pidfd: int


def set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def open_terminal(root: int, columns: int, rows: int) -> tuple[int, int]:
    """Open a new terminal in the pod with this root. Returns master and slave.

    The folders above /dev/pts are the sandbox's to change. So no link is followed, and what was found is checked.

    Raises LimitReached when the pod's terminals are used up, SandboxLost when /dev/pts is not what it should be.
    """
    flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
    found = syscalls.open_in_root(root, "/dev/pts/ptmx", os.O_PATH, follow_links=False)
    try:
        _check(found, lambda device: device == _PTMX)
        # Reopens the inode that was checked; a path could lead elsewhere by now.
        master = os.open(f"/proc/self/fd/{found}", flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise LimitReached(
            "the sandbox has no terminal left", hint="the programs in it use all 64: end some of them"
        ) from error
    finally:
        os.close(found)
    try:
        fcntl.ioctl(master, _TIOCSPTLCK, bytes(4))  # unlock: from here on other processes of the pod can open the slave
        # TIOCGPTPEER opens the slave of this very master. Its path in the pod could lead to another device.
        slave = fcntl.ioctl(master, _TIOCGPTPEER, flags)
        try:
            _check(slave, lambda device: os.major(device) in _SLAVE_MAJORS)
            set_size(master, columns, rows)
        except BaseException:
            os.close(slave)
            raise
    except BaseException as error:
        os.close(master)
        if isinstance(error, OSError) and error.errno not in NO_ROOM_ERRNOS:
            raise SandboxLost(f"cannot open a terminal in the sandbox: {error.strerror}") from error
        raise
    return master, slave


def _check(descriptor: int, is_expected: Callable[[int], bool]) -> None:
    """Raise SandboxLost unless this is the expected character device on a devpts file system."""
    status = os.fstat(descriptor)
    if (
        not stat.S_ISCHR(status.st_mode)
        or not is_expected(status.st_rdev)
        or syscalls.file_system_type(descriptor) != _DEVPTS
    ):
        raise SandboxLost("the sandbox has replaced its /dev/pts")


class Entering:
    """Starts one program in a pod, in two steps.

    After `start` it exists without any privilege and waits. `run` checks its walls from outside and lets it go on.
    """

    def __init__(
        self, pod: Pod, command: Command, limits: Sequence[tuple[int, int, int]], others: frozenset[int]
    ) -> None:
        self._pod = pod
        self._others = others  # children of the engine that are already in this pod, and not to be taken for a stray
        self._command = command
        self._limits = limits
        # SOCK_SEQPACKET keeps reports apart, so that one recv returns one of them.
        self._report, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._report.setblocking(False)
        self._ready = False
        self._failure: str | None = None

    async def start(self, slave: int) -> Started:
        """Start the program. From here on the caller owns it, whether or not `run` succeeds.

        Raises LimitReached when the pod has no room for another process, RametError when a step fails.
        """
        # Run to the end even if our caller is cancelled: a child with an unknown pid would never be reaped.
        return await finish(asyncio.to_thread(self._enter, slave), _discard)

    def _enter(self, slave: int) -> Started:
        # Descriptors that the helper inherits are closed here as soon as it has started. With our copy of `_theirs`
        # open, `run` would not see the end of the report socket.
        with contextlib.ExitStack() as sent:
            sent.callback(self._theirs.close)
            group_files = self._pod.group.open_group_files() if self._pod.group is not None else []
            for group_file in group_files:
                sent.callback(os.close, group_file)
            files = []
            for name, data in (("filter", compile_filter(self._pod.uncounted)), ("request", self._command.encode())):
                files.append(os.memfd_create(name, os.MFD_CLOEXEC))
                sent.callback(os.close, files[-1])
                os.write(files[-1], data)
            given = [self._pod.handle.init_pidfd, *files, slave, self._theirs.fileno(), *group_files]
            command = [str(HELPER), "enter", *map(str, given[:5])]
            for group_file in group_files:
                command += ["--group", str(group_file)]
            for limit in self._limits:
                # RLIM_INFINITY is -1 in Python and 2^64-1 for the kernel.
                command += ["--limit", *(str(part % (1 << 64)) for part in limit)]
            # Nothing of the request goes into its environment or arguments: the helper runs with the engine's
            # privileges, and other processes could read them in /proc.
            helper = subprocess.Popen(
                command, pass_fds=given, env={}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            code = helper.wait(_ENTER_SECONDS)
        except subprocess.TimeoutExpired:
            # The child of a helper that was killed lives on; `_started` finds it.
            helper.kill()
            code = helper.wait()
        return self._started(code)

    def _started(self, code: int) -> Started:
        """Read the reports after the helper has ended.

        By then everything that the helper sent is in the socket. Packets of its child may come before, between or after
        those.
        """
        pid = None
        while packet := self._packet():
            kind, _, rest = packet.partition(" ")
            if kind == "pid":
                pid = int(rest)
            elif kind == "ready":
                self._ready = True
            else:
                self._failure = rest
        if pid is not None:
            return Started(pid, os.pidfd_open(pid))
        error = self._failure or f"the helper ended with {code}"
        # Killed by a signal, perhaps between its clone and its report: look for the child.
        if code < 0:
            _end_stray(self._pod, self._others)
        # A helper that has entered the pod's groups counts against its memory, and the OOM killer may choose it.
        if _NO_ROOM.search(error) or code == -signal.SIGKILL:
            raise LimitReached(
                f"cannot start a program in the sandbox: {error}",
                hint="its limit of processes or memory is reached: end some of what runs in it",
            )
        raise RametError(f"cannot start a program in the sandbox: {error}")

    def _packet(self) -> str:
        try:
            return os.fsdecode(self._report.recv(2048))
        except BlockingIOError:
            return ""

    async def run(self, started: Started) -> None:
        """Check the program's walls from outside, then let it run. Returns when it runs or has already died.

        Raises InvalidArgument when the command or folder does not work, SandboxLost when the walls are wrong or time
        runs out.
        """
        loop = asyncio.get_running_loop()
        if self._failure is not None:
            raise self._refused(self._failure)
        try:
            async with asyncio.timeout(_ENTER_SECONDS):
                while not self._ready:
                    packet = os.fsdecode(await loop.sock_recv(self._report, 2048))
                    if not packet:
                        return  # killed by a process in the pod or by the OOM killer: its exit status says so
                    if packet != "ready":
                        raise self._refused(packet.removeprefix("error "))
                    self._ready = True
                try:
                    check_walls(started.pid, self._pod)
                except OSError as error:
                    # The kernel hides parts of /proc/PID from us once the process is exiting. That is no breach;
                    # anything else may be.
                    if await _ends(started.pidfd):
                        return
                    raise SandboxLost(
                        f"cannot inspect a program that was about to run on a terminal: {error}"
                    ) from error
                # EPIPE: it was killed while it waited.
                with contextlib.suppress(BrokenPipeError):
                    self._report.send(b"x")
                # The report socket is close-on-exec: its end means that execve succeeded (or that the process died).
                # Before that the child can only report an error.
                while packet := os.fsdecode(await loop.sock_recv(self._report, 2048)):
                    raise self._refused(packet.removeprefix("error "))
        except TimeoutError:
            raise SandboxLost(
                f"the program did not start within {_ENTER_SECONDS:.0f} seconds",
                hint="another process of the sandbox may have stopped it, or the sandbox is short of CPU time",
            ) from None
        except ConnectionResetError:
            return  # it died with unread data in the socket

    def _refused(self, why: str) -> RametError:
        step, _, reason = why.partition(": ")
        if step == "run":
            return InvalidArgument(
                f"command cannot be run: {self._command.arguments[0]!r:.200}: {reason}", details={"argument": "command"}
            )
        if step == "go to the folder":
            return InvalidArgument(
                f"cwd cannot be entered: {self._command.folder!r:.200}: {reason}", details={"argument": "cwd"}
            )
        return SandboxLost(f"cannot start a program in the sandbox: {why}")

    def close(self) -> None:
        self._report.close()
        self._theirs.close()


def check_walls(pid: int, pod: Pod) -> None:
    """Check from outside that a process has no capabilities, has the filter, and is in the pod's root and namespaces.

    The helper's word is not enough: it works among hostile processes of the pod. Raises SandboxLost, or OSError when
    /proc cannot be read.
    """
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in lines if ":\t" in line)
    held = {name: status.get(name, "").strip() for name in _POWERLESS}
    root, expected = os.stat(f"/proc/{pid}/root/"), os.fstat(pod.root)
    same_root = (root.st_dev, root.st_ino) == (expected.st_dev, expected.st_ino)
    if held != _POWERLESS or not same_root or pod.namespaces_of(pid) != pod.namespaces:
        raise SandboxLost("a program that was about to run on a terminal is not behind all walls of its pod")


def _end_stray(pod: Pod, others: frozenset[int]) -> None:
    """Kill the child that a helper left when it was killed right after its clone, before it could report the pid.

    The engine is its parent. A child of the engine in this pid namespace that is not among `others` can only be this
    one.
    """
    inside = pod.namespaces[-1]
    # The kernel lists children by the thread that started them. The helper was started in a worker thread.
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
            for pid in map(int, file.read().split()):
                if pid not in others and os.stat(f"/proc/{pid}/ns/pid").st_ino == inside:
                    _discard(Started(pid, os.pidfd_open(pid)))


async def _ends(pidfd: int) -> bool:
    """Whether the process ends soon: the kernel refuses to show some of a process that is exiting."""
    own = os.dup(pidfd)  # a loop has one reader per descriptor, and the owner of this one may be watching it
    try:
        return await wait_for_end(own, _DYING_SECONDS)
    finally:
        os.close(own)


def _discard(started: Started) -> None:
    """Kill and reap a program whose caller is gone. It was never let run, so it has no children."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(started.pidfd, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, started.pidfd, os.WEXITED)
    os.close(started.pidfd)
