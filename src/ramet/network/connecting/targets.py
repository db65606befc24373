"""From a host that code in a sandbox asks for to a connection: rules, one lookup, rules again, connect.

The address that is connected to is one that the rules have allowed. The name is never resolved a second time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import Literal

from ramet.isolation.kernel.packet_rules import NAMES_BLOCK
from ramet.network.connecting.addresses import plain
from ramet.network.connecting.decisions import Verdict
from ramet.network.connecting.resolver import NotResolved
from ramet.network.peers import SandboxPeer
from ramet.network.reports import ConnectionReport
from ramet.network.streams.socket_stream import SocketStream
from ramet.network.streams.stream import Stream
from ramet.protocol.network.rules import Address, host_address, host_name
from ramet.protocol.network.specs import Kind

Status = Literal["rule", "limit", "bytes", "unresolved", "unreachable"]

_CONNECT_SECONDS = 30.0  # for all addresses of a name together
_CONNECT_SECONDS_EACH = 10.0
_ADDRESSES_AT_MOST = 6
# A vanished peer is noticed after 60 s of silence and five unanswered probes.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 5))


class TargetRefused(Exception):
    """There is no connection: the reason, in words for the program that asked, and the kind of failure."""

    def __init__(self, reason: str, status: Status, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status: Status = status
        self.hint = hint  # a hint for the sandbox's owner; None: the usual one for the status


class OutgoingConnection:
    """A connection to a host. Counts the bytes of its stream for the log and for the limits of the sandbox."""

    def __init__(self, peer: SandboxPeer, host: str, port: int, address: Address, stream: SocketStream) -> None:
        self.host = host  # in the form that rules compare
        self.port = port
        self.address = address
        self.stream: Stream = stream  # replaced by the TLS stream when TLS starts
        self.reason: str | None = None  # why it was cut
        self.entry: ConnectionReport
        self.on_over: Callable[[], None] | None = None  # called once, whatever ended it
        self._socket = stream
        self._peer = peer
        self._over = False

    def __repr__(self) -> str:
        return f"<OutgoingConnection {self.host}:{self.port} at {self.address}, {'over' if self._over else 'open'}>"

    def begin(self, entry: ConnectionReport) -> None:
        """Register the connection with its log entry, and start to count."""
        self.entry = entry
        self._peer.targets.add(self)
        # No byte may pass uncounted: what arrived during the connect is counted below.
        self._socket.meter = self
        self._peer.limits.take()
        self._socket.on_lost = self._lost
        if self._socket.unread_bytes:  # the server spoke before we started to count
            self.received(self._socket.unread_bytes)
        # It was lost before the callback was set, and will not be reported again.
        if self._socket.lost:
            self._lost()

    @property
    def plain(self) -> SocketStream:
        """The stream on the wire, below TLS."""
        return self._socket

    def received(self, count: int) -> float:
        self.entry.received += count
        return self._count(count, self.cut)

    def sent(self, count: int) -> float:
        self.entry.sent += count
        # When the very first bytes exceed the limit they are not written, so nothing has gone to the host.
        first = self.entry.sent == count and not self.entry.received
        return self._count(count, self.refuse if first else self.cut)

    def close(self, reason: str | None = None) -> None:
        """Close it after sending what was written, and complete its log entry."""
        self.stream.close()
        self._finish(reason)

    def cut(self, reason: str, reset: bool = True) -> None:
        """End it at once: readers and writers get a ConnectionError.

        The host sees a reset, or with ``reset=False`` an orderly end.
        """
        if not self._over:
            self.reason = reason
            if reset:
                self._socket.abort()
            else:
                self._socket.close()
            self._finish(reason)

    def refuse(self, reason: str) -> None:
        """Cut it because of what the client was about to send; the log shows it as denied."""
        if not self._over:
            self.entry.allowed = False
            self.cut(reason)

    def why_no_more(self) -> str | None:
        """Why the current rules would not allow it. None: they do."""
        name = self.host if host_address(self.host) is None else None
        decider = self._peer.decider
        verdict = Verdict(True, None) if name is None else decider.name_verdict(name, self.port)
        if verdict.allowed:
            verdict = decider.address_verdict(self.address, self.port, name)
        return None if verdict.allowed else verdict.reason

    def _count(self, count: int, end: Callable[[str], None]) -> float:
        peer = self._peer
        wait = peer.limits.spend(count)
        peer.entries.changed(self.entry)
        if peer.limits.exhausted and not self._over:
            end(peer.limits.exhaustion())
        return wait

    def _lost(self) -> None:
        """The socket is closed. This may be long after the end, if the host did not read what was written to it."""
        self.close()
        self._peer.limits.give_back()

    def _finish(self, reason: str | None) -> None:
        # Both `close` and `cut` lead here, and closing the socket does again.
        if self._over:
            return
        self._over = True
        # Exactly once per connection: the slot and the log entry must not be freed twice.
        self._peer.targets.discard(self)
        self._peer.limits.end_target()
        self.entry.open = False
        self.entry.reason = reason or self.entry.reason
        self._peer.entries.changed(self.entry)
        # Cleared first: the callback may close this target.
        called, self.on_over = self.on_over, None
        if called is not None:
            called()


async def reach(peer: SandboxPeer, host: str, port: int, kind: Kind) -> OutgoingConnection:
    """Connect to a host, given as a name or an address. Makes one log entry, whatever happens. Raises TargetRefused."""
    rule: str | None = None
    try:
        host = _meant(peer, host)
        name, address = host_name(host), host_address(host)
        verdict = _first_verdict(peer, host, name, address, port)
        rule = verdict.rule
        if not verdict.allowed:
            raise TargetRefused(verdict.reason or "no rule allows it", "rule", verdict.hint)
        against = peer.limits.why_no_target()
        if against is not None:
            raise TargetRefused(*against)
    except TargetRefused as refused:
        peer.entries.tried(kind, host, port, False, rule, refused.reason)
        raise
    # Counted before the first await, so that concurrent requests cannot exceed the limit together.
    peer.limits.begin_target()
    try:
        try:
            target = await _connected(peer, name, address, port)
        except TargetRefused as refused:
            peer.entries.tried(kind, host, port, refused.status != "rule", rule, refused.reason)
            raise
    except BaseException:
        peer.limits.end_target()
        raise
    target.begin(peer.entries.tried(kind, host, port, True, rule, None, str(target.address), open=True))
    why = target.why_no_more()  # the rules may have changed while we resolved and connected
    if why is not None:
        target.refuse(why)
        raise TargetRefused(why, "rule")
    return target


def _meant(peer: SandboxPeer, host: str) -> str:
    """The name behind a stand-in address that a program got from our DNS. Other hosts are returned unchanged."""
    address = host_address(host)
    if address is None or plain(address) not in NAMES_BLOCK:
        return host
    name = peer.names.name_of(plain(address))
    if name is None:
        unknown = f"{host} belongs to no name that was looked up since the proxy started"
        raise TargetRefused(unknown, "rule", "look the name up again, or connect to the name itself")
    return name


def _first_verdict(peer: SandboxPeer, host: str, name: str | None, address: Address | None, port: int) -> Verdict:
    """The decision before anything is resolved. Raises TargetRefused for what is not a host and port."""
    if 1 <= port <= 65535:
        if address is not None:
            return peer.decider.address_verdict(address, port)
        if name is not None:
            return peer.decider.name_verdict(name, port)
    odd = f"{host!r:.200} port {port} is neither a host name nor an address"
    raise TargetRefused(odd, "rule", "is it spelled right?")


async def _connected(peer: SandboxPeer, name: str | None, address: Address | None, port: int) -> OutgoingConnection:
    if address is not None:
        found = [plain(address)]
    else:
        assert name is not None
        found = await _allowed_addresses(peer, name, port)
    problem = "nothing was tried"
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            # In the resolver's order, which prefers what the host can reach.
            for one in found[:_ADDRESSES_AT_MOST]:
                try:
                    stream = await _connect(peer, one, port)
                    return OutgoingConnection(peer, name or str(one), port, one, stream)
                except (OSError, TimeoutError) as error:
                    problem = f"{one}: {_in_words(error)}"
    except TimeoutError:
        problem = "it took too long"
    raise TargetRefused(f"{name or address} port {port} cannot be reached ({problem})", "unreachable")


async def _allowed_addresses(peer: SandboxPeer, name: str, port: int) -> list[Address]:
    pinned = peer.decider.pinned(name)
    try:
        found = [pinned] if pinned is not None else await peer.lookups.addresses(name)
    except NotResolved as error:
        raise TargetRefused(str(error), "unresolved") from None
    # Every address is checked: the operator of the name's DNS could lead it to a private one.
    verdicts = [(plain(one), peer.decider.address_verdict(one, port, name)) for one in found]
    allowed = [one for one, verdict in verdicts if verdict.allowed]
    if not allowed:
        first = verdicts[0][1]
        raise TargetRefused(first.reason or f"no address of {name} is allowed", "rule", first.hint)
    return allowed


async def _connect(peer: SandboxPeer, address: Address, port: int) -> SocketStream:
    loop = asyncio.get_running_loop()
    end = socket.socket(socket.AF_INET6 if isinstance(address, ipaddress.IPv6Address) else socket.AF_INET)
    try:
        end.setblocking(False)
        # Pieces are passed on as they arrive. Nagle's algorithm would hold them back for an acknowledgement.
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            end.setsockopt(socket.IPPROTO_TCP, option, value)
        async with asyncio.timeout(_CONNECT_SECONDS_EACH):
            await loop.sock_connect(end, (str(address), port))
        # The transport owns the socket from here on.
        _, stream = await loop.create_connection(lambda: SocketStream(peer.limits), sock=end)
        return stream
    except BaseException:
        end.close()
        raise


def _in_words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else type(error).__name__
