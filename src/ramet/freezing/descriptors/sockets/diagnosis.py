"""The kernel's socket diagnosis (NETLINK_SOCK_DIAG) in a pod's network: finds the peer of a unix socket."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading

from ramet.freezing.descriptors.kernel import join_network
from ramet.protocol.lazy_dataclasses import dataclass

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NLMSG_ERROR = 2
_HEADER = struct.Struct("IHHII")
_SHOW_PEER, _SHOW_WAITING, _SHOW_QUEUES = 4, 8, 16
_PEER, _WAITING, _QUEUES, _SHUTDOWN = 2, 3, 4, 6  # attributes UNIX_DIAG_* of linux/unix_diag.h
_ANY_STATE = _ANY_COOKIE = 0xFFFFFFFF
_LISTENING, _ESTABLISHED = 10, 1


@dataclass(frozen=True, slots=True)
class UnixFacts:
    """The kernel's description of a unix socket."""

    peer: int
    listening: bool
    connected: bool
    backlog: int
    waiting: tuple[int, ...]
    shutdown: int


class SocketDiagnosis:
    """A netlink socket in the network of another process."""

    def __init__(self, pidfd: int) -> None:
        self._socket = _open_in_network(pidfd)

    def close(self) -> None:
        self._socket.close()

    def unix(self, inode: int) -> UnixFacts | None:
        """Look a socket up by inode. None: it does not exist (any more). Raises OSError."""
        show = _SHOW_PEER | _SHOW_WAITING | _SHOW_QUEUES
        wanted = struct.pack("BBHIIIII", socket.AF_UNIX, 0, 0, _ANY_STATE, inode, show, _ANY_COOKIE, _ANY_COOKIE)
        self._socket.send(_HEADER.pack(_HEADER.size + len(wanted), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + wanted)
        # The kernel answers inside `send`, so this never waits.
        answer = self._socket.recv(1 << 17, socket.MSG_DONTWAIT)
        length, kind, _, _, _ = _HEADER.unpack_from(answer)
        if kind == _NLMSG_ERROR:
            reason = -struct.unpack_from("i", answer, _HEADER.size)[0]
            if reason == errno.ENOENT:
                return None
            raise OSError(reason, "socket diagnosis of a unix socket")
        # struct unix_diag_msg: family, type, state, padding, inode; then the cookie.
        _, _, state, _, _ = struct.unpack_from("BBBBI", answer, _HEADER.size)
        attributes = _attributes(answer[_HEADER.size + 16 : length])
        waiting = attributes.get(_WAITING, b"")
        return UnixFacts(
            peer=int.from_bytes(attributes.get(_PEER, b"\0"), "little"),
            listening=state == _LISTENING,
            connected=state == _ESTABLISHED,
            backlog=int.from_bytes(attributes.get(_QUEUES, bytes(8))[4:8], "little"),
            waiting=struct.unpack(f"{len(waiting) // 4}I", waiting),
            shutdown=attributes.get(_SHUTDOWN, b"\0")[0],
        )


def _open_in_network(pidfd: int) -> socket.socket:
    """Open a netlink socket in another process's network.

    A socket belongs to the network that its thread is in when it is made. A thread that may return to its own network
    moves there and back, in 20 microseconds. It may not if that network belongs to a more privileged namespace, as the
    host's does. Then a new thread is started that ends there, in ten times the time.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Try the way back first, before leaving.
        try:
            join_network(home)
        except PermissionError:
            return _open_in_thread(pidfd)
        join_network(pidfd)
        try:
            return _open()
        finally:
            join_network(home)
    finally:
        os.close(home)


def _open() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)


def _open_in_thread(pidfd: int) -> socket.socket:
    made: list[socket.socket | OSError] = []

    def go() -> None:
        """Runs in a thread that stays in the other network until its end."""
        try:
            join_network(pidfd)
            made.append(_open())
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    position = 0
    while position + 4 <= len(data):
        # struct nlattr, padded to four bytes.
        length, kind = struct.unpack_from("HH", data, position)
        if length < 4:
            break
        found[kind] = data[position + 4 : position + length]
        position += (length + 3) & ~3
    return found
