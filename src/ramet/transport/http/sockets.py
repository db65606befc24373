"""What both drivers do to a socket in the same way."""

from __future__ import annotations

import socket


def prepare(sock: socket.socket) -> socket.socket:
    """Made for small messages that somebody waits for."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def something_to_read(sock: socket.socket) -> bool:
    """Also true at the end of the stream, or after an error: then reading tells of it."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
