"""Makes TCP and UDP sockets again: connections before listeners, so that no accept can meet another program."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Mapping

from ramet.freezing.descriptors.calls import CallList
from ramet.freezing.descriptors.recipes import Address, Description, InternetSocket, Message
from ramet.freezing.descriptors.sockets.internet_sockets import plain
from ramet.freezing.descriptors.sockets.socket_options import (
    reuse_address,
    set_blocking_mode,
    set_early_options,
    set_late_options,
    set_option,
)

_HAS_SHUT_DOWN = frozenset((4, 5, 9, 11))  # FIN_WAIT1, FIN_WAIT2, LAST_ACK, CLOSING
_NEVER_CONNECTED = frozenset((7, 2))  # CLOSE, SYN_SENT
# How long sending may wait for room in the receiver's buffer, which grows as data arrives.
_SEND_SECONDS = struct.pack("qq", 2, 0)
_BACKLOG = 64


class InternetMaker:
    """Makes all TCP and UDP sockets of one process. `slots` maps the index of a description to what was made."""

    def __init__(self, script: CallList, sockets: Mapping[int, tuple[Description, InternetSocket]]) -> None:
        self._script = script
        self._all = sockets
        self._tcp = {index: pair for index, pair in sockets.items() if pair[1].facts.type == socket.SOCK_STREAM}
        self._udp = {index: pair for index, pair in sockets.items() if pair[1].facts.type == socket.SOCK_DGRAM}
        self._listening = [thing for _, thing in self._tcp.values() if thing.listening]
        self._temporary_listeners: dict[tuple[int, Address], int] = {}  # by family and address
        self.slots: dict[int, int] = {}

    def make(self) -> None:
        # Connections first: a temporary listener needs the same port as the real one, and a connection must be accepted
        # by the right one. With SO_REUSEADDR the real listener can then bind the port although connections use it.
        self._make_connections()
        for index, (_, thing) in self._tcp.items():
            if thing.listening:
                self._make_bound(index, thing)
        for index, (_, thing) in self._tcp.items():
            if index not in self.slots:
                self._make_rest(index, thing)
        # All UDP sockets are bound before datagrams are sent, and connected afterwards: a connected socket refuses
        # datagrams from others.
        for index, (_, thing) in self._udp.items():
            self._make_bound(index, thing)
        for index, (_, thing) in self._udp.items():
            self._resend(index, thing)
        for index, (_, thing) in self._udp.items():
            if thing.remote is not None:
                self._connect(self.slots[index], thing, thing.remote, must_work=False)
        # Last: O_NONBLOCK would make the calls above return before they are done.
        for index, (each, thing) in self._all.items():
            set_late_options(self._script, self.slots[index], thing.facts)
            reuse_address(self._script, self.slots[index], thing.facts.reuses_address)
            set_blocking_mode(self._script, self.slots[index], each.flags)

    def _make_connections(self) -> None:
        """Make connections with both ends here, or with one end whose peer is gone.

        A lone end gets a peer that sends what was left to read and closes.
        """
        by_names = {
            (plain(thing.local), plain(thing.remote)): index
            for index, (_, thing) in self._tcp.items()
            if thing.remote is not None
        }
        for index, (_, thing) in self._tcp.items():
            if thing.remote is None or thing.state in _NEVER_CONNECTED or index in self.slots:
                continue
            peer = by_names.get((plain(thing.remote), plain(thing.local)))
            if peer is not None and peer != index:
                self._make_pair(index, peer)
            elif not self._waits(thing) and _is_local(thing.remote):
                self._make_end(index, thing, thing.remote)
        for listener in self._temporary_listeners.values():
            self._script.drop(listener)

    def _make_pair(self, index: int, peer: int) -> None:
        one, other = self._tcp[index][1], self._tcp[peer][1]
        # The end whose port belongs to a listener was accepted there. It must be the server again.
        if any(listener.local[1] == other.local[1] for listener in self._listening):
            index, peer, one, other = peer, index, other, one
        # `one` is the server: its port is a listener's, if any is.
        client, server = self._meet(other, one.facts.family, one.local)
        self.slots[index], self.slots[peer] = server, client
        # Each end's unread data is sent by the other end.
        self._send(client, one.received)
        self._send(server, other.received)
        for slot, end in ((server, one), (client, other)):
            if end.state in _HAS_SHUT_DOWN:
                self._script.call("shut a TCP connection down", "shutdown", slot, socket.SHUT_WR)

    def _make_end(self, index: int, thing: InternetSocket, remote: Address) -> None:
        client, server = self._meet(thing, thing.facts.family, remote)
        self.slots[index] = client
        self._send(server, thing.received)
        self._script.drop(server)
        if thing.state in _HAS_SHUT_DOWN:
            self._script.call("shut a TCP connection down", "shutdown", client, socket.SHUT_WR, must_work=False)

    def _meet(self, client: InternetSocket, family: int, at: Address) -> tuple[int, int]:
        """Connect a client from its own port to this address, through a temporary listener.

        Returns client and server slots.
        """
        script = self._script
        slot = self._new(client)
        self._bind(slot, client.facts.family, client.local)
        # Bound and listening before the connect, or that would be refused.
        listener = self._temporary_listener(family, at)
        self._connect(slot, client, at)
        return slot, script.create("accept a TCP connection", "accept4", listener, 0, 0, 0)

    def _temporary_listener(self, family: int, at: Address) -> int:
        key = family, at
        if key not in self._temporary_listeners:
            script = self._script
            slot = script.create("make a TCP listener", "socket", family, socket.SOCK_STREAM, 0)
            # An IPv4 client connects to an IPv6 listener only if that accepts mapped addresses.
            if family == socket.AF_INET6 and "." in at[0]:
                set_option(script, slot, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, bytes(4))
            reuse_address(script, slot, True)
            self._bind(slot, family, at)
            script.call("listen for TCP connections", "listen", slot, _BACKLOG)
            self._temporary_listeners[key] = slot
        return self._temporary_listeners[key]

    def _make_bound(self, index: int, thing: InternetSocket) -> None:
        slot = self.slots[index] = self._new(thing)
        if thing.local[1]:
            self._bind(slot, thing.facts.family, thing.local)
        if thing.listening:
            self._script.call(f"listen on port {thing.local[1]}", "listen", slot, thing.backlog)

    def _make_rest(self, index: int, thing: InternetSocket) -> None:
        """Make new sockets, those waiting to be accepted, and dead ones for connections that cannot be restored."""
        if thing.remote is not None and thing.state not in _NEVER_CONNECTED and not self._waits(thing):
            self.slots[index] = self._script.copy("stand in for a TCP connection", self._script.dead())
            return
        self._make_bound(index, thing)
        if thing.remote is not None and self._waits(thing):
            self._connect(self.slots[index], thing, thing.remote, must_work=False)

    def _waits(self, thing: InternetSocket) -> bool:
        """Whether the connection is not accepted yet: its peer is in a listener's queue."""
        remote = thing.remote
        return remote is not None and any(each.waiting and each.local[1] == remote[1] for each in self._listening)

    def _resend(self, index: int, thing: InternetSocket) -> None:
        """Send datagrams again from where they came from, through the original sender if it is here."""
        by_port = {each.local[1]: self.slots[place] for place, (_, each) in self._udp.items()}
        for message in thing.messages:
            source = message.source
            if not isinstance(source, tuple):
                continue
            known = by_port.get(source[1])
            sender = self._sender(thing, source) if known is None else known
            self._send_datagram(sender, thing, message, source)
            if known is None:
                self._script.drop(sender)

    def _sender(self, thing: InternetSocket, source: Address) -> int:
        slot = self._script.create("make a UDP socket", "socket", thing.facts.family, socket.SOCK_DGRAM, 0)
        address = _pack(thing.facts.family, source)
        self._script.call("bind a UDP socket", "bind", slot, address, len(address), must_work=False)
        return slot

    def _send_datagram(self, sender: int, thing: InternetSocket, message: Message, source: Address) -> None:
        host = thing.local[0]
        if ipaddress.ip_address(host).is_unspecified:
            host = source[0]  # this machine, in the same notation
        address = _pack(thing.facts.family, (host, thing.local[1]))
        arguments = (message.data or b"\0", len(message.data), socket.MSG_DONTWAIT, address, len(address))
        self._script.call("send a datagram again", "sendto", sender, *arguments, must_work=False)

    def _new(self, thing: InternetSocket) -> int:
        facts = thing.facts
        slot = self._script.create("make a socket", "socket", facts.family, facts.type, facts.protocol)
        set_early_options(self._script, slot, facts)
        # So that its port can be bound although a connection in TIME_WAIT, or a temporary listener, has used it.
        if facts.type == socket.SOCK_STREAM or facts.reuses_address:
            reuse_address(self._script, slot, True)
        return slot

    def _bind(self, slot: int, family: int, at: Address) -> None:
        address = _pack(family, at)
        self._script.call(f"bind to {at[0]} port {at[1]}", "bind", slot, address, len(address))

    def _connect(self, slot: int, thing: InternetSocket, at: Address, must_work: bool = True) -> None:
        address = _pack(thing.facts.family, at)
        name = f"connect to {at[0]} port {at[1]}"
        self._script.call(name, "connect", slot, address, len(address), must_work=must_work)

    def _send(self, slot: int, data: bytes) -> None:
        """Fill a connection. Waits a little for room; if not all of it fits in that time, the call fails."""
        if not data:
            return
        # A send timeout, because nothing in a thaw may wait without a limit.
        set_option(self._script, slot, socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_SECONDS)
        self._script.call(
            "fill a TCP connection", "sendto", slot, data, len(data), socket.MSG_NOSIGNAL, 0, 0, whole=True
        )
        set_option(self._script, slot, socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(16))


def _is_local(address: Address) -> bool:
    return ipaddress.ip_address((plain(address) or address)[0]).is_loopback


def _pack(family: int, address: Address) -> bytes:
    """Pack a struct sockaddr_in or sockaddr_in6."""
    host, port = address
    if family == socket.AF_INET:
        return struct.pack("=H", family) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)
    if "." in host and ":" not in host:
        host = f"::ffff:{host}"
    start = struct.pack("=H", family) + struct.pack(">HI", port, 0)
    return start + socket.inet_pton(socket.AF_INET6, host) + bytes(4)
