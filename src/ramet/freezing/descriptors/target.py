"""The paused process, as the readers of its descriptors see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ramet.freezing.calls import CONTROL, SPARE_STDERR, SPARE_STDOUT

LINE_NUMBERS = (CONTROL, SPARE_STDOUT, SPARE_STDERR)


@dataclass(frozen=True, slots=True)
class Lines:
    """Inodes of the guest's three lines to the engine: a copy gets lines of its own instead."""

    control: int  # a socket
    stdout: int  # a pipe
    stderr: int  # a pipe

    def links(self) -> dict[bytes, int]:
        """What the links in /proc/<pid>/fd read for them, and the number that the copy's own line has."""
        return {
            b"socket:[%d]" % self.control: CONTROL,
            b"pipe:[%d]" % self.stdout: SPARE_STDOUT,
            b"pipe:[%d]" % self.stderr: SPARE_STDERR,
        }


@dataclass(frozen=True, slots=True)
class Target:
    """A REPL whose threads are all stopped, and with it every process of its pod."""

    pid: int  # in the engine's numbering
    pidfd: int
    root: int  # O_PATH descriptor of the pod's root
    pod_pids: Mapping[int, int]  # the engine's number of each process of the pod, and the pod's own
    lines: Lines

    @property
    def pid_inside(self) -> int:
        return self.pod_pids.get(self.pid, 0)
