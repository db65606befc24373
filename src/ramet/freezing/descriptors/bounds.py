"""Limits on what is copied of a paused process. It may be hostile, and all of its pod waits while we read."""

from __future__ import annotations

from ramet.errors import ForkFailed

MOST_DESCRIPTORS = 4096  # what a sandbox may open, unless it raises its own limit
MOST_SHARED_MAPS = 4096
MOST_WATCHED = 8192  # entries of all epolls together
MOST_FACT_BYTES = 2 * 1024 * 1024  # per file in /proc/<pid>/fdinfo: an epoll has a line for each entry
MOST_EXTENTS = 16_384  # parts of one sparse file
MOST_MESSAGES = 4096  # per socket
MOST_QUEUE_BYTES = 8 * 1024 * 1024  # per pipe or socket; the kernel's own limits are lower unless root raised them
MOST_BYTES = 64 * 1024 * 1024  # all queues and deleted files together: they pass through the engine's memory
MOST_SHARED_BYTES = 4 * 1024 * 1024 * 1024  # mappings that are copied during the pause
MOST_HOLES_BYTES = 256 * 1024 * 1024  # mappings without an open descriptor, whose holes the copy fills
MOST_TERMINALS = 64  # a pod's /dev/pts has no more


class Budget:
    """The read budget of one process. Raises ForkFailed when it is used up."""

    def __init__(self) -> None:
        self._bytes = MOST_BYTES
        self._watched = MOST_WATCHED

    def spend(self, count: int, what: str, most: int = MOST_BYTES) -> None:
        self._bytes -= count
        if count > most or self._bytes < 0:
            raise too_much(
                f"{what}, other buffered data and deleted files of the sandbox are together more than can be copied "
                f"({min(most, MOST_BYTES) >> 20} MiB)",
                hint="read the data, or write it to a file that has a name",
            )

    def watch(self, count: int) -> None:
        self._watched -= count
        if self._watched < 0:
            raise too_much(f"its epoll descriptors watch more than {MOST_WATCHED} descriptors")


def too_much(what: str, hint: str | None = None) -> ForkFailed:
    return ForkFailed(f"the sandbox cannot be copied: {what}", hint=hint)
