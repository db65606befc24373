"""The state of a REPL apart from its threads, memory and descriptors: folder, umask, limits, timers, children."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ramet.freezing import _core
from ramet.freezing.calls import InjectedCall, ResourceLimit, call
from ramet.protocol.lazy_dataclasses import dataclass

_TIMER_BYTES = 32  # struct itimerval
_DELETED = b" (deleted)"
_KILLED = 9  # a status of waitpid: ended by signal 9


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Plain data, read while the REPL is stopped: nothing can change between two reads."""

    folder: bytes
    folder_is_gone: bool
    umask: int
    limits: tuple[ResourceLimit, ...]
    timers: tuple[bytes, ...]  # real, virtual, profiling
    children: tuple[tuple[int, int], ...]  # pid in the pod, status of waitpid with which it ended or shall end

    def calls(self) -> list[InjectedCall]:
        # All of these may fail: the folder may be closed to the process since it went there, or its parent may be gone.
        # Then it starts at the root, where setns has left it.
        go = [call("go to its folder", "chdir", self.folder, must_work=False)]
        if self.folder_is_gone:
            # The original stands in a folder that was removed, so the copy makes one, enters it and removes it again.
            make = call("make its folder", "mkdir", self.folder, 0o700, must_work=False)
            go = [make, *go, call("remove its folder", "rmdir", self.folder, must_work=False)]
        # A thawed process has the template's umask.
        return [*go, call("umask", "umask", self.umask)]

    def timer_calls(self) -> list[InjectedCall]:
        """The interval timers. Last in the list: they run from here on, and a signal could end a process half made."""
        return [
            call("set a timer", "setitimer", kind, timer, 0)
            for kind, timer in enumerate(self.timers)
            if any(timer[16:])
        ]


def read_process(pid: int, children: Sequence[int], timers: bytes) -> ProcessState:
    """Read from outside, from /proc and the kernel. `children` are pids in the engine's numbering. Raises OSError."""
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
    """The child's pid in the pod and its status. A zombie keeps the status with which it ended; a living child counts
    as killed, because the copy does not get it."""
    words = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return inner_pid(pid), int(words[49]) & 0xFFFF if words[0] == b"Z" else _KILLED


def _line(text: bytes, name: bytes) -> bytes:
    """The value of one line. The process's own name comes first, and the kernel escapes newlines in it."""
    return text.partition(b"\n" + name)[2].partition(b"\n")[0]


def _read(path: str) -> bytes:
    """Read in three system calls: a file object takes nine, and the sandbox stands still meanwhile."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 16384)
    finally:
        os.close(descriptor)
