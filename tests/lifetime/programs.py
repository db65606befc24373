"""Programs that own an engine, watched from outside."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

WAIT_SECONDS = 60


class Program:
    """A Python program that runs beside the test; its lines are read one by one."""

    def __init__(self, source: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder  # its TMPDIR: what it leaves behind can be seen
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )

    def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], WAIT_SECONDS)
        assert ready, "the program printed nothing"
        return self.process.stdout.readline().rstrip("\n")

    def until(self, line: str) -> None:
        seen = []
        while (got := self.line()) != line:
            seen.append(got)
            assert got or self.process.poll() is None, "\n".join(seen)

    def finish_input(self) -> None:
        """Lets a program go on that waits for a line."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def finish(self) -> str:
        """Waits for its end; what it still printed."""
        out, _ = self.process.communicate(timeout=WAIT_SECONDS)
        return out

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_SECONDS)
        for file in (self.process.stdin, self.process.stdout):
            if file is not None:
                file.close()


class Watch:
    """Pidfds of processes, so that their ends can be waited for even if their numbers are used again."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._descriptors: list[int] = []
        for pid in pids:
            try:
                self._descriptors.append(os.pidfd_open(pid))
            except ProcessLookupError:
                continue

    def __len__(self) -> int:
        return len(self._descriptors)

    def wait_until_all_ended(self) -> None:
        try:
            for descriptor in self._descriptors:
                ready, _, _ = select.select([descriptor], [], [], WAIT_SECONDS)
                assert ready, "a process is left behind"
        finally:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors.clear()


def groups_of(pid: int) -> list[str]:
    """Control groups that were made for the engine of a process."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup"):
            for folder, names, _ in os.walk(left.split(" ")[4]):
                found += [f"{folder}/{name}" for name in names if name.startswith(f"ramet-{pid}-")]
    return sorted(set(found))


def mounts() -> set[str]:
    """What is mounted in the namespace of the host."""
    return {
        line.split(" ", 3)[2] + line.split(" ", 5)[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
    }
