"""The paused process, as the readers of its descriptors see it."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.freezing.calls import CONTROL, SPARE_STDERR, SPARE_STDOUT
from ramet.protocol.lazy_dataclasses import dataclass

LINE_NUMBERS = (CONTROL, SPARE_STDOUT, SPARE_STDERR)


@dataclass(frozen=True, slots=True)
class Lines:
    """Inodes of the guest's three lines to the engine. A copy gets its own instead."""

    control: int  # a socket
    stdout: int  # a pipe
    stderr: int  # a pipe

    def links(self) -> dict[bytes, int]:
        """The links in /proc/<pid>/fd that these have, with the number of the copy's own line."""
        return {
            b"socket:[%d]" % self.control: CONTROL,
            b"pipe:[%d]" % self.stdout: SPARE_STDOUT,
            b"pipe:[%d]" % self.stderr: SPARE_STDERR,
        }


@dataclass(frozen=True, slots=True)
class PausedProcess:
    """A REPL whose threads are all stopped, like every other process of its pod."""

    pid: int  # pid in the engine's numbering
    pidfd: int
    root: int  # O_PATH descriptor of the pod's root
    pod_pids: Mapping[int, int]  # pids of the pod's processes: the engine's number to the pod's own
    lines: Lines

    @property
    def pid_inside(self) -> int:
        return self.pod_pids.get(self.pid, 0)
