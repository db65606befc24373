"""A file without a name, in memory."""

from __future__ import annotations

import os


def nameless_file(name: str) -> int:
    """A descriptor. Where nobody counts the memory of such files there are none; a tmpfs is counted."""
    try:
        return os.memfd_create(name)
    except OSError:
        return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
