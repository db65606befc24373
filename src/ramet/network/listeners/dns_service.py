"""The DNS server of one pod: names that may be reached exist, others do not.

A name that may not be reached is never looked up: the name itself could carry data to the operator of its name server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from ramet.network.connecting.resolver import NotResolved
from ramet.network.listeners import dns_names
from ramet.network.listeners.dns_names import DnsQuery
from ramet.network.peers import SandboxPeer

_QUERIES_AT_ONCE = 64
_TOLD_AT_MOST = 256
# Do not log a name again within this time: a program asks for IPv4 and IPv6, and for each of its search domains.
_TOLD_SECONDS = 5.0
_PORT = 53

Failed = Callable[[BaseException], None]


class DnsService(asyncio.DatagramProtocol):
    """The DNS server of one sandbox. ``raw``: connections to stand-in addresses are redirected to us."""

    def __init__(self, peer: SandboxPeer, raw: bool, failed: Failed) -> None:
        self._peer = peer
        self._raw = raw
        self._failed = failed
        self._transport: asyncio.DatagramTransport | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: dict[str, float] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns_names.read_query(data)
        # Drop what we cannot answer now. A program that gets no answer asks again.
        # Bounded, because each lookup holds memory and perhaps a thread for seconds.
        if query is None or len(self._tasks) >= _QUERIES_AT_ONCE:
            return
        known = self._known(query)
        if known is not None:
            self._send(known, addr)
            return
        task = asyncio.get_running_loop().create_task(self._look_up(query, addr))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def error_received(self, exc: Exception) -> None:
        """ICMP reported that a program was gone before it was answered. Ignore it."""

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._transport is not None:
            self._transport.close()

    def _known(self, query: DnsQuery) -> bytes | None:
        """The answer, if nothing has to be looked up for it. None: look the name up."""
        if query.name is None or not self._peer.decider.may_be_looked_up(query.name):
            self._tell(query, "no rule allows this name, so it was not looked up")
            return dns_names.answer(query, dns_names.NO_SUCH_NAME)
        if not self._raw:
            self._tell(query, "this host has no nf_tables, so only programs that use the proxy can connect")
            return dns_names.answer(query, dns_names.NO_SUCH_NAME)
        # The name exists but has no address of the kind asked for: pods have no IPv6.
        if not query.wants_address:
            return dns_names.answer(query, dns_names.OK)
        if self._peer.decider.pinned(query.name) is not None:
            return self._standing_for(query, query.name)
        return None

    async def _look_up(self, query: DnsQuery, addr: tuple[str, int]) -> None:
        assert query.name is not None
        try:
            await self._peer.lookups.addresses(query.name)
        except NotResolved as error:
            self._tell(query, str(error), allowed=True)
            self._send(
                dns_names.answer(query, dns_names.NO_SUCH_NAME if error.missing else dns_names.SERVER_FAILURE), addr
            )
            return
        self._send(self._standing_for(query, query.name), addr)

    def _standing_for(self, query: DnsQuery, name: str) -> bytes:
        address = self._peer.names.address_of(name)
        if address is None:
            self._tell(query, "this sandbox has looked up too many names")
            return dns_names.answer(query, dns_names.SERVER_FAILURE)
        return dns_names.answer(query, dns_names.OK, address)

    def _send(self, answer: bytes, addr: tuple[str, int]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(answer, addr)

    def _tell(self, query: DnsQuery, reason: str, allowed: bool = False) -> None:
        now = time.monotonic()
        if now - self._told.get(query.written, -_TOLD_SECONDS) < _TOLD_SECONDS:
            return
        if len(self._told) >= _TOLD_AT_MOST:
            self._told.clear()
        self._told[query.written] = now
        rule = None if query.name is None else self._peer.decider.rule_about(query.name)
        self._peer.entries.tried("dns", query.written, _PORT, allowed, rule, reason)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._failed(problem)
