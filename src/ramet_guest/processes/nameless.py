"""Makes a file without a name, in memory."""

from __future__ import annotations

import os


def nameless_file(name: str) -> int:
    """Returns its descriptor.

    Where the memory of a memfd would not be counted against the sandbox, memfd_create is refused; a tmpfs is counted.
    """
    try:
        return os.memfd_create(name)
    except OSError:
        return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
