"""What waits in a TCP connection is read without being taken, also by kernels that cannot move a peek there."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ramet.freezing.descriptors.bounds import Budget
from ramet.freezing.descriptors.sockets.peeking import peek_tcp
from ramet.freezing.descriptors.sockets.socket_options import SO_PEEK_OFF


class OlderSocket(socket.socket):
    """Answers as a TCP socket does before Linux 6.9."""

    def getsockopt(self, level: int, option: int, *size: int) -> Any:
        if (level, option) == (socket.SOL_SOCKET, SO_PEEK_OFF):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return super().getsockopt(level, option, *size)


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        served, _ = server.accept()
        with served:
            yield client, served


@pytest.mark.parametrize("kind", [socket.socket, OlderSocket])
def test_unread_bytes_of_a_connection_are_seen_and_stay(
    connection: tuple[socket.socket, socket.socket], kind: type[socket.socket]
) -> None:
    client, served = connection
    client.sendall(b"unread")
    served.recv(1, socket.MSG_PEEK)  # they are there
    with kind(fileno=os.dup(served.fileno())) as copy:
        assert peek_tcp(copy, Budget()) == b"unread"
        assert peek_tcp(copy, Budget()) == b"unread"
    assert served.recv(99) == b"unread"
