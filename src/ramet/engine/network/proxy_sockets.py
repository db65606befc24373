"""The sockets through which code in one pod reaches the proxy, and the packet rules that redirect to them."""

from __future__ import annotations

import asyncio
import socket

from ramet.engine.seams import Body
from ramet.isolation.kernel.packet_rules import NETLINK_NETFILTER, NETLINK_ROUTE, lead_away
from ramet.isolation.thread_work import finish
from ramet.protocol.network.specs import NAMES_PORT, PROXY_PORT, TRANSPARENT_PORT

_BACKLOG = 1024


class PortTaken(Exception):
    """Code in the pod already listens on a port that the proxy needs."""

    def __init__(self, port: int) -> None:
        self.port = port
        super().__init__(f"port {port} of the sandbox's loopback is in use by its own code")


class ProxySockets:
    """Owns the engine's descriptors of these sockets. A restarted proxy gets them again: no listener is lost."""

    def __init__(self) -> None:
        self.sockets: dict[str, socket.socket] = {}
        self.no_raw_tcp: str | None = None  # the reason, where programs that know no proxy reach nothing

    def __repr__(self) -> str:
        return f"<ProxySockets {', '.join(self.sockets) or 'closed'}>"

    @classmethod
    async def open(cls, body: Body) -> ProxySockets:
        """Open all sockets in the pod and redirect its packets to them.

        Raises PortTaken, or the error of the pod; then no socket stays open.
        """
        made = cls()
        try:
            made.sockets["proxy"] = _bound(await body.listen_tcp(PROXY_PORT, _BACKLOG), PROXY_PORT)
            made.sockets["transparent"] = _bound(await body.listen_tcp(TRANSPARENT_PORT, _BACKLOG), TRANSPARENT_PORT)
            made.sockets["names"] = _bound(await body.bind_udp(NAMES_PORT), NAMES_PORT)
            await made._lead_there(body)
        except BaseException:
            made.close()
            raise
        return made

    async def _lead_there(self, body: Body) -> None:
        with await body.netlink(NETLINK_ROUTE) as route, await body.netlink(NETLINK_NETFILTER) as packets:
            try:
                # In a thread: changing a network takes the kernel's global rtnl lock, which network namespaces that are
                # being made or removed hold for milliseconds. `finish` waits for the thread even when this task is
                # cancelled, because the netlink sockets must not be closed while the thread uses them.
                await finish(asyncio.to_thread(lead_away, route, packets, TRANSPARENT_PORT), lambda _: None)
            except OSError as error:
                self.no_raw_tcp = f"this kernel cannot redirect connections with nf_tables ({error.strerror})"
                self.sockets.pop("transparent").close()

    def close(self) -> None:
        for each in self.sockets.values():
            each.close()
        self.sockets.clear()


def _bound(made: socket.socket | None, port: int) -> socket.socket:
    if made is None:
        raise PortTaken(port)
    return made
