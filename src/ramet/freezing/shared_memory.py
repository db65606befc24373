"""Bounds what processes of sandboxes share, where no control group counts their memory.

Of memory, an rlimit counts what a process has to itself. What it maps shared (`MAP_SHARED`, System V, `/dev/zero`) is
in no limit of the kernel's but RLIMIT_AS, which also counts addresses that are only reserved: gigabytes of them in
node, Java, or an allocator with an arena for each thread. So it is looked at from outside, and a process that has more
of it than its sandbox may have memory is ended, as a control group would do. None of it outlives its mappings: files in
memory (`memfd_create`) are refused in such sandboxes (`PodMaker.uncounted`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

_LOOK_SECONDS = 0.5  # pages are filled at a gigabyte or two a second
_SHARED = re.compile(rb"^RssShmem:\s*(\d+) kB$", re.MULTILINE)

# What is asked before a process is ended, with its number: in this engine's numbering.
Before = Callable[[int], None]


class SharedMemoryWatch:
    """Looks at all processes of the sandboxes that were added, until it is closed. One per engine."""

    def __init__(self) -> None:
        self._watched: dict[int, tuple[int, Before]] = {}  # by the inode of the pod's pid namespace
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ramet-memory")
        self._task: asyncio.Task[None] | None = None

    def add(self, pid_namespace: int, most_bytes: int, before: Before) -> None:
        """`before` is called from another thread."""
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
                # Looked at again, now that the number is held by the pidfd: it may have been another's a moment ago.
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
