"""A lock that is a file: held while its holder lives, whatever way that ends."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

_TOLD_BYTES_AT_MOST = 100
_TOLD = re.compile(r"[0-9]{1,10}( [A-Za-z0-9.+_-]+)?", re.ASCII)  # a process id, and perhaps a version


class FileLock:
    """Owns the descriptor that holds the lock. The file stays when the lock goes: a name that is removed while another
    waits for it would give two holders."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> FileLock | None:
        """The lock, or None when another holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def write(self, text: str) -> None:
        """Say who holds it."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode("ascii"), 0)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def holder(path: Path) -> str:
    """What the holder has written; empty when nobody holds it."""
    try:
        lock = FileLock.take(path)
        if lock is not None:
            with lock:
                return ""
        with path.open("rb") as file:
            told = file.read(_TOLD_BYTES_AT_MOST).decode("ascii", "replace").strip()
    except OSError:
        return ""
    # It becomes part of messages, and of commands that they recommend.
    return told if _TOLD.fullmatch(told) else ""
