"""What a REPL is apart from its threads, memory and descriptors: folder, umask, limits, timers, children."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ramet.freezing import _core
from ramet.freezing.calls import Call, ResourceLimit, call

_TIMER_BYTES = 32  # struct itimerval
_DELETED = b" (deleted)"
_KILLED = 9  # as waitpid tells it: ended by signal 9


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Read while the REPL is stopped; plain data."""

    folder: bytes
    folder_is_gone: bool
    umask: int
    limits: tuple[ResourceLimit, ...]
    timers: tuple[bytes, ...]  # real, virtual, profiling
    children: tuple[tuple[int, int], ...]  # pid in the pod, how it ended or is to end (a status of waitpid)

    def calls(self) -> list[Call]:
        # A folder that was removed under it is made, entered and removed again. Where that cannot be, or the folder is
        # closed to it since, it starts at the root, where setns left it.
        go = [call("go to its folder", "chdir", self.folder, must_work=False)]
        if self.folder_is_gone:
            make = call("make its folder", "mkdir", self.folder, 0o700, must_work=False)
            go = [make, *go, call("remove its folder", "rmdir", self.folder, must_work=False)]
        return [*go, call("umask", "umask", self.umask)]

    def timer_calls(self) -> list[Call]:
        """Timers run from here on."""
        return [
            call("set a timer", "setitimer", kind, timer, 0)
            for kind, timer in enumerate(self.timers)
            if any(timer[16:])
        ]


def read_process(pid: int, children: Sequence[int], timers: bytes) -> ProcessState:
    """What is not in the thread's own hands, from /proc and the kernel."""
    folder = os.readlink(f"/proc/{pid}/cwd".encode())
    return ProcessState(
        folder=folder.removesuffix(_DELETED),
        folder_is_gone=folder.endswith(_DELETED),
        umask=_umask(pid),
        limits=_core.limits(pid),
        timers=tuple(timers[start : start + _TIMER_BYTES] for start in range(0, len(timers), _TIMER_BYTES)),
        children=tuple(_child(child) for child in children),
    )


def inner_pid(pid: int) -> int:
    """The number of a process in its own pid namespace."""
    return int(_line(_read(f"/proc/{pid}/status"), b"NSpid:").split()[-1])


def _umask(pid: int) -> int:
    return int(_line(_read(f"/proc/{pid}/status"), b"Umask:"), 8)


def _child(pid: int) -> tuple[int, int]:
    """A dead child that nobody waited for keeps how it ended; a living one counts as killed."""
    words = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return inner_pid(pid), int(words[49]) & 0xFFFF if words[0] == b"Z" else _KILLED


def _line(text: bytes, name: bytes) -> bytes:
    """The kernel escapes newlines in a process's own name, which comes first."""
    return text.partition(b"\n" + name)[2].partition(b"\n")[0]


def _read(path: str) -> bytes:
    """In three calls: a file object takes nine, and the sandbox is waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 16384)
    finally:
        os.close(descriptor)
