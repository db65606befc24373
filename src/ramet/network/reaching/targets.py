"""From a host that code in a sandbox has asked for to a connection: rules, one look at the name, rules again, connect.

The address that is connected to is one that the rules have seen. Nobody looks at the name a second time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import Literal

from ramet.isolation.packet_rules import NAMES_BLOCK
from ramet.network.guests import Guest
from ramet.network.reaching.addresses import plain
from ramet.network.reaching.deciding import Verdict
from ramet.network.reaching.resolving import NotResolved
from ramet.network.reporting import Entry
from ramet.network.streams.socket_stream import SocketStream
from ramet.network.streams.stream import Stream
from ramet.protocol.network import Kind
from ramet.protocol.rules import Address, host_address, host_name

Status = Literal["rule", "limit", "bytes", "unresolved", "unreachable"]

_CONNECT_SECONDS = 30.0  # for all addresses of a name together
_CONNECT_SECONDS_EACH = 10.0
_ADDRESSES_AT_MOST = 6
# Found out this long after a peer has vanished: 60 s of silence, then five questions.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 5))


class Refused(Exception):
    """There is no connection, and why: in words for whoever asked, and as what kind of failure."""

    def __init__(self, reason: str, status: Status, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status: Status = status
        self.hint = hint  # what the owner of the sandbox can do; None: what is usual for the status


class Target:
    """A connection to a host. Counts what goes over its stream for the log and the limits of the sandbox."""

    def __init__(self, guest: Guest, host: str, port: int, address: Address, stream: SocketStream) -> None:
        self.host = host  # as rules compare it
        self.port = port
        self.address = address
        self.stream: Stream = stream  # becomes another one where TLS begins
        self.reason: str | None = None  # why it was cut
        self.entry: Entry
        self.on_over: Callable[[], None] | None = None  # called once, however it came to its end
        self._socket = stream
        self._guest = guest
        self._over = False

    def __repr__(self) -> str:
        return f"<Target {self.host}:{self.port} at {self.address}, {'over' if self._over else 'open'}>"

    def begin(self, entry: Entry) -> None:
        self.entry = entry
        self._guest.targets.add(self)
        self._socket.meter = self
        self._guest.limits.take()
        self._socket.on_lost = self._lost
        if self._socket.unread_bytes:  # a server that speaks first has done so
            self.received(self._socket.unread_bytes)
        if self._socket.lost:
            self._lost()

    @property
    def plain(self) -> SocketStream:
        """What goes over the wire, whatever is above it."""
        return self._socket

    def received(self, count: int) -> float:
        self.entry.received += count
        return self._count(count, self.cut)

    def sent(self, count: int) -> float:
        self.entry.sent += count
        # The first bytes are not written any more when they are too many: nothing has gone there.
        first = self.entry.sent == count and not self.entry.received
        return self._count(count, self.refuse if first else self.cut)

    def close(self, reason: str | None = None) -> None:
        """End it, after what was written, and its entry."""
        self.stream.close()
        self._finish(reason)

    def cut(self, reason: str, reset: bool = True) -> None:
        """End it at once: whoever reads from it or writes to it gets a ConnectionError. The host sees a reset, or an
        end as that of a program.
        """
        if not self._over:
            self.reason = reason
            if reset:
                self._socket.abort()
            else:
                self._socket.close()
            self._finish(reason)

    def refuse(self, reason: str) -> None:
        """Cut it for what the program was about to say: the log tells of it as of one that was never allowed."""
        if not self._over:
            self.entry.allowed = False
            self.cut(reason)

    def why_no_more(self) -> str | None:
        """Why the rules of now would not allow it. None: they do."""
        name = self.host if host_address(self.host) is None else None
        decider = self._guest.decider
        verdict = Verdict(True, None) if name is None else decider.name_verdict(name, self.port)
        if verdict.allowed:
            verdict = decider.address_verdict(self.address, self.port, name)
        return None if verdict.allowed else verdict.reason

    def _count(self, count: int, end: Callable[[str], None]) -> float:
        guest = self._guest
        wait = guest.limits.spend(count)
        guest.entries.changed(self.entry)
        if guest.limits.exhausted and not self._over:
            end(guest.limits.exhaustion())
        return wait

    def _lost(self) -> None:
        """Its socket is closed, perhaps long after its end: a host may not have read what was written to it."""
        self.close()
        self._guest.limits.give_back()

    def _finish(self, reason: str | None) -> None:
        if self._over:
            return
        self._over = True
        self._guest.targets.discard(self)
        self._guest.limits.end_target()
        self.entry.open = False
        self.entry.reason = reason or self.entry.reason
        self._guest.entries.changed(self.entry)
        called, self.on_over = self.on_over, None
        if called is not None:
            called()


async def reach(guest: Guest, host: str, port: int, kind: Kind) -> Target:
    """A connection to a host as it was asked for: a name or an address. One entry in the log, whatever comes of it."""
    rule: str | None = None
    try:
        host = _meant(guest, host)
        name, address = host_name(host), host_address(host)
        verdict = _first_verdict(guest, host, name, address, port)
        rule = verdict.rule
        if not verdict.allowed:
            raise Refused(verdict.reason or "no rule allows it", "rule", verdict.hint)
        against = guest.limits.why_no_target()
        if against is not None:
            raise Refused(*against)
    except Refused as refused:
        guest.entries.tried(kind, host, port, False, rule, refused.reason)
        raise
    guest.limits.begin_target()
    try:
        try:
            target = await _connected(guest, name, address, port)
        except Refused as refused:
            guest.entries.tried(kind, host, port, refused.status != "rule", rule, refused.reason)
            raise
    except BaseException:
        guest.limits.end_target()
        raise
    target.begin(guest.entries.tried(kind, host, port, True, rule, None, str(target.address), open=True))
    why = target.why_no_more()  # the rules may have changed while it was looked up and connected to
    if why is not None:
        target.refuse(why)
        raise Refused(why, "rule")
    return target


def _meant(guest: Guest, host: str) -> str:
    """The name, where a program has looked it up by itself, here, and asks for the address that it was told."""
    address = host_address(host)
    if address is None or plain(address) not in NAMES_BLOCK:
        return host
    name = guest.names.name_of(plain(address))
    if name is None:
        unknown = f"{host} belongs to no name that was looked up since the proxy started"
        raise Refused(unknown, "rule", "look the name up again, or connect to the name itself")
    return name


def _first_verdict(guest: Guest, host: str, name: str | None, address: Address | None, port: int) -> Verdict:
    """Before anything is looked up."""
    if 1 <= port <= 65535:
        if address is not None:
            return guest.decider.address_verdict(address, port)
        if name is not None:
            return guest.decider.name_verdict(name, port)
    odd = f"{host!r:.200} port {port} is neither a host name nor an address"
    raise Refused(odd, "rule", "is it spelled right?")


async def _connected(guest: Guest, name: str | None, address: Address | None, port: int) -> Target:
    if address is not None:
        found = [plain(address)]
    else:
        assert name is not None
        found = await _allowed_addresses(guest, name, port)
    problem = "nothing was tried"
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            for one in found[:_ADDRESSES_AT_MOST]:
                try:
                    stream = await _connect(guest, one, port)
                    return Target(guest, name or str(one), port, one, stream)
                except (OSError, TimeoutError) as error:
                    problem = f"{one}: {_in_words(error)}"
    except TimeoutError:
        problem = "it took too long"
    raise Refused(f"{name or address} port {port} cannot be reached ({problem})", "unreachable")


async def _allowed_addresses(guest: Guest, name: str, port: int) -> list[Address]:
    pinned = guest.decider.pinned(name)
    try:
        found = [pinned] if pinned is not None else await guest.lookups.addresses(name)
    except NotResolved as error:
        raise Refused(str(error), "unresolved") from None
    verdicts = [(plain(one), guest.decider.address_verdict(one, port, name)) for one in found]
    allowed = [one for one, verdict in verdicts if verdict.allowed]
    if not allowed:
        first = verdicts[0][1]
        raise Refused(first.reason or f"no address of {name} is allowed", "rule", first.hint)
    return allowed


async def _connect(guest: Guest, address: Address, port: int) -> SocketStream:
    loop = asyncio.get_running_loop()
    end = socket.socket(socket.AF_INET6 if isinstance(address, ipaddress.IPv6Address) else socket.AF_INET)
    try:
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            end.setsockopt(socket.IPPROTO_TCP, option, value)
        async with asyncio.timeout(_CONNECT_SECONDS_EACH):
            await loop.sock_connect(end, (str(address), port))
        _, stream = await loop.create_connection(lambda: SocketStream(guest.limits), sock=end)
        return stream
    except BaseException:
        end.close()
        raise


def _in_words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else type(error).__name__
