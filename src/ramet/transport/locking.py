"""A lock that is a file: held while its holder lives, whatever way that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


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
        return path.read_text("ascii").strip()
    except OSError:
        return ""
