"""The route to a server: direct, or through the HTTP proxy that the environment names.

Reads the usual variables: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, lower case first. Addresses of this machine
never go through a proxy.
"""

from __future__ import annotations

import ipaddress
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import field
from urllib.parse import unquote_to_bytes, urlsplit

from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.transport.http.address import Address

_PROXY_PORT = 80
_ALLOWED = "must be http://[user:password@]host[:port]"


@dataclass(frozen=True, slots=True)
class Route:
    """The host to connect to, and what a request says on this route."""

    host: str
    port: int
    target: bytes  # the target in the request line
    proxy: bool = False
    tunnel: bytes | None = field(default=None, repr=False)  # a CONNECT request to send first
    authorization: bytes = field(default=b"", repr=False)  # a header line for the proxy


def find_route(address: Address, environment: Mapping[str, str]) -> Route:
    """Return the route to a server.

    Through a proxy, HTTPS goes in a CONNECT tunnel, so that the proxy does not see the key; plain HTTP names the whole
    URL in the request line.
    """
    path = f"{address.path}/v1/call".encode("ascii")
    proxy = _proxy(address, environment)
    if not proxy:
        return Route(address.host, address.port, path)
    name, url = proxy
    host, port, authorization = _read_proxy(name, url)
    if address.secure:
        authority = f"[{address.host}]" if ":" in address.host else address.host
        there = f"{authority}:{address.port}".encode("ascii")
        tunnel = b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (there, there, authorization)
        return Route(host, port, path, True, tunnel)
    return Route(host, port, f"http://{address.authority}".encode("ascii") + path, True, None, authorization)


def _proxy(address: Address, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the name and the value of the variable that sets the proxy."""
    if _is_loopback(address.host) or _excepted(address, _variable(environment, "no_proxy")[1]):
        return None
    scheme = "https" if address.secure else "http"
    if scheme == "http" and "REQUEST_METHOD" in environment:
        # In a CGI program the variable HTTP_PROXY may come from a header of the request (CVE-2016-5385).
        named = ("http_proxy", environment.get("http_proxy", ""))
    else:
        named = _variable(environment, f"{scheme}_proxy")
    if not named[1]:
        named = _variable(environment, "all_proxy")
    return named if named[1] else None


def _variable(environment: Mapping[str, str], name: str) -> tuple[str, str]:
    for spelling in (name, name.upper()):
        if value := environment.get(spelling, "").strip():
            return spelling, value
    return name, ""


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _excepted(address: Address, exceptions: str) -> bool:
    return any(_matches(address, entry.strip().lower()) for entry in exceptions.split(",") if entry.strip())


def _matches(address: Address, entry: str) -> bool:
    if entry == "*":
        return True
    try:
        return ipaddress.ip_address(address.host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        pass  # one of the two is a name, not an address
    host, _, port = entry.partition(":") if entry.count(":") == 1 else (entry, "", "")
    if port and port != str(address.port):
        return False
    host = host.removeprefix("*").removeprefix(".")
    return bool(host) and (address.host == host or address.host.endswith(f".{host}"))


def _read_proxy(name: str, url: str) -> tuple[str, int, bytes]:
    """Parse a proxy's URL. Messages never quote it, because it may contain a password."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise wrong_argument(name, f"the environment variable {name} {_ALLOWED}; it has characters that no URL has")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong_argument(name, f"the environment variable {name} {_ALLOWED}; it cannot be read as a URL") from None
    if parts.scheme != "http" or not host:
        raise wrong_argument(name, f"the environment variable {name} {_ALLOWED}; it does not name an HTTP proxy")
    authorization = b""
    if parts.username is not None:
        user = unquote_to_bytes(parts.username) + b":" + unquote_to_bytes(parts.password or "")
        authorization = b"Proxy-Authorization: Basic %s\r\n" % b64encode(user)
    return host, port or _PROXY_PORT, authorization
