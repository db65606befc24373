"""Reads what waits in a socket's queue, without taking it out and without touching the socket's pending error.

Even a peek reports and clears a pending error, so nothing is received from a socket that has one. Descriptors attached
to a message stay where they are: there is no room for them in what is received.
"""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
from collections.abc import Iterator
from typing import Any

from ramet.freezing.descriptors.bounds import MOST_MESSAGES, MOST_QUEUE_BYTES, Budget
from ramet.freezing.descriptors.recipes import Message
from ramet.freezing.descriptors.sockets.socket_options import SO_PEEK_OFF

_SIOCINQ = 0x541B
_PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT
_CHUNK_BYTES = 1 << 18
_LARGEST_MESSAGE = 1 << 18


def may_receive(copy: socket.socket) -> bool:
    """Whether there is something to peek at, and no pending error."""
    poll = select.poll()
    poll.register(copy, select.POLLIN)
    events = sum(found for _, found in poll.poll(0))
    return bool(events & select.POLLIN) and not events & select.POLLERR


@contextlib.contextmanager
def _moving_on(copy: socket.socket) -> Iterator[None]:
    """Let each peek begin where the last one ended (SO_PEEK_OFF), and restore the owner's setting afterwards."""
    # The duplicate shares this option with the owner's descriptor, so it is restored.
    before = copy.getsockopt(socket.SOL_SOCKET, SO_PEEK_OFF)
    copy.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
    try:
        yield
    finally:
        copy.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, before)


def peek_stream(copy: socket.socket, budget: Budget) -> tuple[bytes, bool]:
    """All bytes of a unix stream, and whether descriptors are attached to them."""
    parts: list[bytes] = []
    descriptors = False
    with _moving_on(copy):
        while True:
            try:
                data, _, flags, _ = copy.recvmsg(_CHUNK_BYTES, 0, _PEEK)
            except OSError:
                break
            # MSG_CTRUNC without room for control data: there was some.
            descriptors |= bool(flags & socket.MSG_CTRUNC)
            if not data:
                break
            budget.spend(len(data), "what waits in a socket", MOST_QUEUE_BYTES)
            parts.append(data)
    return b"".join(parts), descriptors


def peek_messages(copy: socket.socket, budget: Budget) -> tuple[tuple[Message, ...], bool]:
    """All messages of a socket that keeps boundaries, and whether descriptors are attached to them."""
    messages: list[Message] = []
    descriptors = False
    with _moving_on(copy):
        while len(messages) < MOST_MESSAGES:
            try:
                data, _, flags, source = copy.recvmsg(_LARGEST_MESSAGE, 0, _PEEK)
            except OSError:
                break
            if not data and copy.type == socket.SOCK_SEQPACKET:
                break  # end-of-file, reported again and again
            budget.spend(len(data), "what waits in a socket", MOST_QUEUE_BYTES)
            descriptors |= bool(flags & socket.MSG_CTRUNC)
            messages.append(Message(data, _source(source)))
    return tuple(messages), descriptors


def _source(address: Any) -> tuple[str, int] | bytes | None:
    if isinstance(address, tuple):
        return str(address[0]), int(address[1])
    if isinstance(address, str):
        address = address.encode("utf-8", "surrogateescape")
    return address if isinstance(address, bytes) and address else None


def peek_tcp(copy: socket.socket, budget: Budget) -> bytes:
    # SIOCINQ gives the amount, so that one peek reads all of it.
    waiting = int.from_bytes(fcntl.ioctl(copy, _SIOCINQ, bytes(4)), "little")
    if not waiting:
        return b""
    budget.spend(waiting, "what waits in a TCP connection", MOST_QUEUE_BYTES)
    # Kernels before 6.9 have no SO_PEEK_OFF for TCP (EOPNOTSUPP); there a peek always begins at the front.
    moved = False
    with contextlib.suppress(OSError):
        moved = copy.getsockopt(socket.SOL_SOCKET, SO_PEEK_OFF) >= 0
    try:
        with _moving_on(copy) if moved else contextlib.nullcontext():
            return copy.recv(waiting, _PEEK)
    except OSError:
        return b""
