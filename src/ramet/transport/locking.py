"""A lock on a file. The kernel releases it when its holder ends, however that happens."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from ramet.errors import RametError

_TOLD_BYTES_AT_MOST = 100
# A process id, and perhaps a version and a build.
_TOLD = re.compile(r"[0-9]{1,10}( [A-Za-z0-9.+_-]+){0,2}", re.ASCII)


def cannot_write(path: Path, error: OSError) -> RametError:
    return RametError(
        f"cannot write {path}: {error.strerror}", hint="make room on that disk, or choose another folder with --state"
    )


class FileLock:
    """Owns the descriptor that holds the lock.

    The file stays when the lock is released: if its name were removed while another process waits for it, there could
    be two holders.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path

    @classmethod
    def take(cls, path: Path) -> FileLock | None:
        """Return the lock, or None if another process holds it. Raise RametError if the file cannot be made."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(descriptor, path)

    def write(self, text: str) -> None:
        """Write who holds the lock. Raise RametError if the disk is full."""
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode("ascii"), 0)
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def holder(path: Path) -> str:
    """Return what the holder wrote; an empty string if the lock is free."""
    try:
        lock = FileLock.take(path)
        if lock is not None:
            with lock:
                return ""
        with path.open("rb") as file:
            told = file.read(_TOLD_BYTES_AT_MOST).decode("ascii", "replace").strip()
    except (OSError, RametError):
        return ""
    # The text becomes part of messages, and of commands that they recommend.
    return told if _TOLD.fullmatch(told) else ""
