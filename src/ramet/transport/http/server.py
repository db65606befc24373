"""State shared by all calls to one server."""

from __future__ import annotations

import os
import ssl
from functools import cached_property

from ramet.transport.http.address import Address
from ramet.transport.http.connections import ServerConnections
from ramet.transport.http.messages import request_head
from ramet.transport.http.routes import find_route


class Server:
    """One address, and the route to it that the environment gave when it was first used."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.url = address.url
        self.route = find_route(address, os.environ)
        self.head = request_head(address, self.route)
        self.connections = ServerConnections()
        # Whether the last call was answered quickly. Blocking callers set it, and then poll before they sleep.
        self.quick = False

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        # Cached, and only if needed: loading the certificates of the system takes a while.
        return ssl.create_default_context() if self.address.secure else None

    @property
    def way(self) -> str:
        """The address and the proxy, for messages."""
        return f"{self.url} through the proxy {self.route.host}:{self.route.port}" if self.route.proxy else self.url
