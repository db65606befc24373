"""How much of a paused process is carried over. It may be hostile, and it is paused while we read."""

from __future__ import annotations

from ramet.errors import ForkFailed

MOST_DESCRIPTORS = 4096  # what a sandbox may open unless it raises its own limit
MOST_SHARED_MAPS = 4096
MOST_WATCHED = 8192  # entries of all epolls together
MOST_FACT_BYTES = 2 * 1024 * 1024  # of one file in /proc/<pid>/fdinfo: an epoll has a line for each entry
MOST_EXTENTS = 16_384  # parts of one sparse file
MOST_MESSAGES = 4096  # of one socket
MOST_QUEUE_BYTES = 8 * 1024 * 1024  # of one pipe or socket; the kernel's own limits are lower unless raised by root
MOST_BYTES = 64 * 1024 * 1024  # of all queues and deleted files together: they travel through the engine's memory
MOST_SHARED_BYTES = 4 * 1024 * 1024 * 1024  # of mappings that are copied inside the pause
MOST_HOLES_BYTES = 256 * 1024 * 1024  # of mappings that nobody has open: they are filled in the copy
MOST_TERMINALS = 64  # a pod's /dev/pts has no more


class Budget:
    """What may still be read of one process. Raises ForkFailed when that is used up."""

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
