"""A listening unix socket without a name: only processes that hold its descriptor can connect.

An owner connects to its engine this way. The alternative, sending a descriptor over a socket, fails while too many
descriptors of the same user are in flight, and code in a sandbox of an ordinary user can cause that.

The socket is made in a folder that is removed at once. An ``O_PATH`` descriptor of it remains, and connecting to
``/proc/self/fd/N`` reaches the socket behind that descriptor.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from contextlib import suppress

_BACKLOG = 4096
# /dev/shm first: it has room when the disks are full.
_FOLDERS = ("/dev/shm", "")  # the second is the folder for temporary files


class PrivateListener:
    """Owns the descriptor to connect through, and the socket itself until it is handed to the engine."""

    def __init__(self, listener: socket.socket, way: int) -> None:
        self.listener = listener
        self._way = way

    @classmethod
    def make(cls) -> PrivateListener | None:
        """Make one. Return None if no folder allows sockets, or if there is no /proc."""
        for folder in _FOLDERS:
            with suppress(OSError):
                return _make(folder or tempfile.gettempdir())
        return None

    def connect(self) -> socket.socket:
        """Return a new connection or raise OSError. Does not wait: the engine may accept it later."""
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
            # Bind through the folder's descriptor: the path may be longer than the 108 bytes of a socket address.
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
