"""Makes unix sockets again: first those that others connect to, then pairs, then connections waiting to be accepted."""

from __future__ import annotations

import functools
import socket
import struct
from collections.abc import Mapping

from ramet.freezing.descriptors.calls import CallList
from ramet.freezing.descriptors.recipes import Description, UnixSocket
from ramet.freezing.descriptors.sockets.socket_options import (
    SO_BUF_LOCK,
    set_early_options,
    set_late_options,
    set_option,
)

_SEND_SHUTDOWN = 2
_NO_WAIT = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_CHUNK_BYTES = 32_768  # one kernel buffer, which is queued whole or not at all
_USUAL_ROOM = 65_536
_LONGEST_NAME = 108
_ENOUGH_ROOM = 1 << 24  # the kernel gives as much as it allows


class UnixMaker:
    """Makes all unix sockets of one process. `slots` maps the index of a description to what was made."""

    def __init__(self, script: CallList, sockets: Mapping[int, tuple[Description, UnixSocket]]) -> None:
        self._script = script
        self._sockets = sockets
        self._index_of = {thing.inode: index for index, (_, thing) in sockets.items()}
        self._listeners: dict[bytes, int] = {}  # slots, by the name given to bind
        self._ways: dict[bytes, bytes] = {}  # the path to connect to from the root folder, by such a name
        self._waiting = {
            inode: thing.name for _, thing in sockets.values() if thing.name is not None for inode in thing.waiting
        }
        self.slots: dict[int, int] = {}

    def make(self) -> None:
        for index, (_, thing) in self._sockets.items():
            if self._is_bound(thing):
                self._make_bound(index, thing)
        # Connections that wait to be accepted come last. Otherwise an accept in `_join` would get one of these instead
        # of the connection that it has just made.
        for index, (_, thing) in self._sockets.items():
            if index not in self.slots and self._waiting.get(thing.inode) not in self._ways:
                self._make_end(index, thing)
        for index, (_, thing) in self._sockets.items():
            if index not in self.slots:
                self._connect(index, thing, self._waiting[thing.inode])
        # A larger backlog was needed to queue them all; now it gets its real value.
        for index, (_, thing) in self._sockets.items():
            if thing.listening and len(thing.waiting) > thing.backlog:
                self._script.call("listen on a unix socket", "listen", self.slots[index], thing.backlog)
        for index, (_, thing) in self._sockets.items():
            if thing.facts.type == socket.SOCK_DGRAM and thing.name is not None:
                self._fill_bound(index, thing)
        # Options at the end: timeouts, small buffers or O_NONBLOCK of the original could make the calls above fail.
        for index, (each, thing) in self._sockets.items():
            set_early_options(self._script, self.slots[index], thing.facts)
            set_late_options(self._script, self.slots[index], thing.facts)
            self._script.set_flags("set a unix socket's flags", self.slots[index], each.flags)

    def _is_bound(self, thing: UnixSocket) -> bool:
        """Whether the socket itself was bound. An accepted socket has its listener's name without being bound."""
        return thing.name is not None and not (thing.connected and thing.facts.type != socket.SOCK_DGRAM)

    def _new(self, thing: UnixSocket) -> int:
        # Nothing in a thaw may wait: whether a connect blocks depends on a backlog that the original chose.
        kind = thing.facts.type | socket.SOCK_NONBLOCK
        return self._script.create("make a unix socket", "socket", socket.AF_UNIX, kind, 0)

    def _make_bound(self, index: int, thing: UnixSocket) -> None:
        script, slot, path, name = self._script, self._new(thing), thing.path, thing.name or b""
        self.slots[index] = slot
        if name.startswith(b"\0"):
            _bind(script, slot, name)
            self._ways[name] = name
        elif path is None or path.deleted:
            _bind(script, slot, b"")  # any name: the kernel picks an abstract one
        else:
            # bind was given a name relative to a folder, and getsockname must show the same name again.
            script.call("go to a socket's folder", "chdir", path.folder + b"\0")
            # The copied tree contains the socket's file, and bind fails with EADDRINUSE if it exists.
            script.call("remove the copied socket file", "unlink", path.name + b"\0", must_work=False)
            given = name if name.startswith(b"/") else path.name
            _bind(script, slot, given)
            script.call("set a socket file's mode", "chmod", path.name + b"\0", path.mode)
            script.call("go back", "chdir", b"/\0")
            way = name if name.startswith(b"/") else path.folder.rstrip(b"/") + b"/" + path.name
            # A longer path does not fit into sun_path, so no socket can connect to it from the root folder.
            if len(way) < _LONGEST_NAME:
                self._ways[name] = way
        if thing.listening:
            script.call("listen on a unix socket", "listen", slot, max(thing.backlog, len(thing.waiting)))
            self._listeners[name] = slot

    def _make_end(self, index: int, thing: UnixSocket) -> None:
        peer = self._index_of.get(thing.peer)
        other = self._sockets[peer][1] if peer is not None else None
        if thing.facts.type == socket.SOCK_DGRAM and other is not None and other.name in self._ways:
            self._connect(index, thing, other.name)
        elif not thing.connected and thing.peer == 0 and not thing.shutdown:
            self.slots[index] = self._new(thing)
        else:
            self._make_pair(index, thing, peer, other)

    def _make_pair(self, index: int, thing: UnixSocket, peer: int | None, other: UnixSocket | None) -> None:
        script = self._script
        here, there = self._join(thing, other)
        self.slots[index] = here
        _fill(script, thing, there)
        if other is not None and peer is not None and peer not in self.slots:
            self.slots[peer] = there
            _fill(script, other, here)
            # If one side cannot send, the other cannot receive, so restoring SHUT_WR on both restores everything.
            for slot, end in ((here, thing), (there, other)):
                if end.shutdown & _SEND_SHUTDOWN:
                    script.call("shut a unix socket down", "shutdown", slot, socket.SHUT_WR)
        else:
            script.drop(there)

    def _join(self, thing: UnixSocket, other: UnixSocket | None) -> tuple[int, int]:
        """Make both ends.

        If a listener is here that one of them came from, connect through it, so that both have their names.
        """
        script, kind = self._script, thing.facts.type
        for server in (thing, other):
            name = server.name if server is not None else None
            if name in self._ways and name in self._listeners:
                client = self._new(thing)
                _connect(script, client, self._ways[name])
                accepted = script.create("accept it", "accept4", self._listeners[name], 0, 0, 0)
                return (accepted, client) if server is thing else (client, accepted)
        return script.create_pair("make a pair of sockets", "socketpair", socket.AF_UNIX, kind, 0, bytes(8))

    def _connect(self, index: int, thing: UnixSocket, name: bytes | None) -> None:
        assert name is not None
        self.slots[index] = self._new(thing)
        _connect(self._script, self.slots[index], self._ways[name])

    def _fill_bound(self, index: int, thing: UnixSocket) -> None:
        """Send datagrams to a named socket again, through the original sender if it is here."""
        way = self._ways.get(thing.name or b"")
        if way is None:
            return
        script, address = self._script, _address(way)
        by_name = {end.name: self.slots[place] for place, (_, end) in self._sockets.items() if end.name}
        for message in thing.messages:
            known = by_name.get(message.source) if isinstance(message.source, bytes) else None
            sender = self._new(thing) if known is None else known
            arguments = (sender, message.data or b"\0", len(message.data), _NO_WAIT, address, len(address))
            script.call("send a datagram again", "sendto", *arguments, must_work=False)
            if known is None:
                script.drop(sender)
        peer = self._index_of.get(thing.peer)
        if peer is not None and self._sockets[peer][1].name in self._ways:
            _connect(script, self.slots[index], self._ways[self._sockets[peer][1].name or b""])


def _address(name: bytes) -> bytes:
    """Pack a struct sockaddr_un, only as long as the name: an abstract name is not padded."""
    end = b"" if not name or name.startswith(b"\0") or len(name) >= _LONGEST_NAME else b"\0"
    return struct.pack("H", socket.AF_UNIX) + name + end


def _bind(script: CallList, slot: int, name: bytes) -> None:
    address = _address(name)
    script.call(f"bind a unix socket to {name!r}", "bind", slot, address, len(address))


def _connect(script: CallList, slot: int, name: bytes) -> None:
    address = _address(name)
    script.call(f"connect a unix socket to {name!r}", "connect", slot, address, len(address))


def _fill(script: CallList, thing: UnixSocket, sender: int) -> None:
    """Put what waited in a socket into its queue, from the other end."""
    parts = [message.data for message in thing.messages]
    parts += [thing.stream[at : at + _CHUNK_BYTES] for at in range(0, len(thing.stream), _CHUNK_BYTES)]
    roomy = sum(map(len, parts)) > _USUAL_ROOM
    if roomy:
        # The queue of the original may be fuller than a new socket's send buffer allows.
        set_option(script, sender, socket.SOL_SOCKET, socket.SO_SNDBUF, struct.pack("i", _ENOUGH_ROOM))
    for part in parts:
        script.call("fill a unix socket", "sendto", sender, part or b"\0", len(part), _NO_WAIT, 0, 0)
    # Restore the size, and clear the mark that a program has set it.
    if roomy:
        usual = struct.pack("i", _usual_send_room())
        set_option(script, sender, socket.SOL_SOCKET, socket.SO_SNDBUF, usual)
        set_option(script, sender, socket.SOL_SOCKET, SO_BUF_LOCK, bytes(4), must_work=False)


@functools.cache
def _usual_send_room() -> int:
    with socket.socket(socket.AF_UNIX) as fresh:
        return fresh.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
