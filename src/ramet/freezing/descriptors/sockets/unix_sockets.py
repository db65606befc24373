"""Unix sockets: pairs with their queues, listeners, connections through listeners, datagram sockets."""

from __future__ import annotations

import fcntl
import os
import socket
import stat

from ramet.freezing.descriptors.access import Opened, ProcessAccess, inode_of
from ramet.freezing.descriptors.recipes import Message, Thing, UnixPath, UnixSocket
from ramet.freezing.descriptors.sockets.peeking import may_receive, peek_messages, peek_stream
from ramet.freezing.descriptors.sockets.socket_options import read_facts

_SIOCUNIXFILE = 0x89E0


def read_unix(access: ProcessAccess, opened: Opened, copy: socket.socket) -> Thing:
    inode = int(opened.link.removeprefix(b"socket:[").rstrip(b"]"))
    known = access.diagnosis().unix(inode)
    if known is None:
        return access.dead(opened)
    name = _name(copy)
    # Peeking at a listener fails, and at a socket with a pending error it would clear that error.
    can_be_peeked = not known.listening and may_receive(copy)
    stream, messages, descriptors = _queue(access, copy) if can_be_peeked else (b"", (), False)
    if descriptors:
        access.lost.append(f"socket {opened.number}: descriptors that travel with its messages")
    if known.waiting:
        access.lost.append(
            f"socket {opened.number}: what was sent on {len(known.waiting)} connections not yet accepted"
        )
    return UnixSocket(
        facts=read_facts(copy),
        inode=inode,
        peer=known.peer,
        name=name,
        path=_path(access, copy, name) if name and not name.startswith(b"\0") else None,
        listening=known.listening,
        connected=known.connected,
        backlog=known.backlog,
        waiting=known.waiting,
        shutdown=known.shutdown,
        stream=stream,
        messages=messages,
    )


def _queue(access: ProcessAccess, copy: socket.socket) -> tuple[bytes, tuple[Message, ...], bool]:
    if copy.type == socket.SOCK_STREAM:
        stream, descriptors = peek_stream(copy, access.budget)
        return stream, (), descriptors
    messages, descriptors = peek_messages(copy, access.budget)
    return b"", messages, descriptors


def _name(copy: socket.socket) -> bytes | None:
    name = copy.getsockname()
    return (name if isinstance(name, bytes) else os.fsencode(str(name))) or None


def _path(access: ProcessAccess, copy: socket.socket, name: bytes) -> UnixPath | None:
    """Where the socket is in the file tree now. bind may have been given a path relative to an unknown folder."""
    try:
        bound = fcntl.ioctl(copy, _SIOCUNIXFILE)
    except OSError:
        return None
    try:
        path = os.readlink(b"/proc/self/fd/%d" % bound)
        status = os.fstat(bound)
        is_own = access.is_own(bound)
    finally:
        os.close(bound)
    # On a folder of the host the socket belongs to the original alone: a copy must not replace it there.
    deleted = not is_own or not access.leads_to(path, inode_of(status))
    folder, _, last = path.rpartition(b"/")
    if not name.startswith(b"/") and path.endswith(b"/" + name):
        folder, last = path[: -len(name) - 1], name
    return UnixPath(folder or b"/", last, stat.S_IMODE(status.st_mode) & 0o1777, deleted)
