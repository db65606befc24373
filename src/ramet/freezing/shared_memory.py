"""Limits the shared memory of sandboxes' processes where no cgroup counts their memory.

An rlimit counts only the private memory of a process. The kernel limits shared mappings (`MAP_SHARED`, System V,
`/dev/zero`) by RLIMIT_AS alone, which also counts addresses that are only reserved: gigabytes of them in node, Java, or
an allocator with an arena for each thread. So the engine looks at the processes from outside, and ends one that shares
more than its sandbox's memory limit, as a cgroup would do. Shared memory does not outlive its mappings there: such
sandboxes may not make files in memory (`memfd_create`, see `PodMaker.uncounted`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

_LOOK_SECONDS = 0.5  # a process fills one or two gigabytes a second
_SHARED = re.compile(rb"^RssShmem:\s*(\d+) kB$", re.MULTILINE)

# Called with the pid, in this engine's numbering, before a process is ended.
Before = Callable[[int], None]


class SharedMemoryWatch:
    """Watches all processes of the sandboxes that were added, until it is closed. One for each engine."""

    def __init__(self) -> None:
        self._watched: dict[int, tuple[int, Before]] = {}  # by the inode of the pod's pid namespace
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ramet-memory")
        self._task: asyncio.Task[None] | None = None

    def add(self, pid_namespace: int, most_bytes: int, before: Before) -> None:
        """Watch one pod. `before` is called from the watch's own thread, not from the loop."""
        self._watched[pid_namespace] = (most_bytes, before)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look())

    def discard(self, pid_namespace: int) -> None:
        self._watched.pop(pid_namespace, None)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._watched:
                # A copy: the loop adds and discards pods while the thread goes through them. In a thread, because /proc
                # may have thousands of processes.
                await loop.run_in_executor(self._thread, _end_greedy, dict(self._watched))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False)


def _end_greedy(watched: Mapping[int, tuple[int, Before]]) -> None:
    least = min(most for most, _ in watched.values())
    for name in os.listdir("/proc"):
        if not name.isdigit() or _shared_bytes(name) <= least:
            continue
        with contextlib.suppress(OSError):  # it ended just now
            pidfd = os.pidfd_open(int(name))
            try:
                # Look again: between the first look and pidfd_open another process may have got the number. From here
                # on the pidfd names one process.
                most, before = watched.get(os.stat(f"/proc/{name}/ns/pid").st_ino, (None, None))
                if most is not None and before is not None and _shared_bytes(name) > most:
                    before(int(name))
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)


def _shared_bytes(name: str) -> int:
    try:
        with open(f"/proc/{name}/status", "rb") as file:
            found = _SHARED.search(file.read())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found is not None else 0
