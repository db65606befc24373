"""All that calls to one server share."""

from __future__ import annotations

import os
import ssl
from functools import cached_property

from ramet.transport.http.address import Address
from ramet.transport.http.connections import Connections
from ramet.transport.http.messages import request_head
from ramet.transport.http.routes import find_route


class Server:
    """One address, with the way to it as the environment said when it was first used."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.url = address.url
        self.route = find_route(address, os.environ)
        self.head = request_head(address, self.route)
        self.connections = Connections()
        # Calls are answered at once these days; kept here by blocking callers, who then look before they sleep.
        self.quick = False

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        # Loading the certificates of the system takes a while: once, and only if they are needed.
        return ssl.create_default_context() if self.address.secure else None

    @property
    def way(self) -> str:
        """For messages: where it is and how we go there."""
        return f"{self.url} through the proxy {self.route.host}:{self.route.port}" if self.route.proxy else self.url
