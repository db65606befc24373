"""How much memory processes have used at most, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

from ramet.transport import embedded
from tests.processes import command_line, descendants


def engine_pid() -> int:
    """Of the engine itself, which the launcher, a child of this process, has started."""
    for pid in descendants(embedded.default_engine().pid):
        command = command_line(pid).split(b"\0")
        if any(b"ramet.engine" in part for part in command) and b"launch" not in command:
            return pid
    raise AssertionError("there is no engine")


def forget_peak(pid: int) -> None:
    """Starts counting VmHWM anew (proc_pid_clear_refs(5))."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


class Peaks:
    """The growth of the peaks of this process and of the engine, from the making of this object on."""

    def __init__(self) -> None:
        self._pids = {"client": os.getpid(), "engine": engine_pid()}
        for pid in self._pids.values():
            forget_peak(pid)
        self._before = {name: peak_bytes(pid) for name, pid in self._pids.items()}

    def growth_bytes(self) -> dict[str, int]:
        return {name: peak_bytes(pid) - self._before[name] for name, pid in self._pids.items()}
