"""A listening unix socket without a name: reached only by who holds it.

An owner connects to its engine by this. The other way, to send a descriptor over a socket, fails while too many
descriptors of the same user are under way, and code in a sandbox of an ordinary user can see to that.

The socket is made in a folder that is gone at once. What is left is an ``O_PATH`` descriptor of it, and connecting to
``/proc/self/fd/N`` reaches the socket behind that.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from contextlib import suppress

_BACKLOG = 4096
# Memory first: it has room when disks are full.
_FOLDERS = ("/dev/shm", "")  # the second: where temporary files are


class PrivateListener:
    """Owns the way to the socket, and the socket itself until it was handed on."""

    def __init__(self, listener: socket.socket, way: int) -> None:
        self.listener = listener
        self._way = way

    @classmethod
    def make(cls) -> PrivateListener | None:
        """None: this system has no folder in which a socket can be made, or no /proc."""
        for folder in _FOLDERS:
            with suppress(OSError):
                return _make(folder or tempfile.gettempdir())
        return None

    def connect(self) -> socket.socket:
        """A new connection, or OSError. Waits for nobody: who listens may accept it later."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{self._way}")
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        self.listener.close()
        way, self._way = self._way, -1
        if way >= 0:
            os.close(way)


def _make(folder: str) -> PrivateListener:
    made = tempfile.mkdtemp(prefix="ramet-", dir=folder)
    path = f"{made}/s"
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # By the folder's descriptor: a path may be longer than a socket's name can be.
            at = os.open(made, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                listener.bind(f"/proc/self/fd/{at}/s")
            finally:
                os.close(at)
            listener.listen(_BACKLOG)
            opened = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                way = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)
            finally:
                os.close(opened)
            return PrivateListener(listener, way)
        except BaseException:
            listener.close()
            raise
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.rmdir(made)
