"""Socket operations that both drivers share."""

from __future__ import annotations

import socket


def prepare(sock: socket.socket) -> socket.socket:
    """Configure a socket for small messages that a caller waits for."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def something_to_read(sock: socket.socket) -> bool:
    """Whether a read would not block.

    Also true at the end of the stream or after an error, which the read then reports.
    """
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
