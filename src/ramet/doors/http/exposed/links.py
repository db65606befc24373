"""Rewrites redirects of servers in sandboxes: they may lead below the prefix, or to other machines. No I/O.

A client that follows a redirect acts in its own name, from its own machine, and sends its key to the same origin again.
So no answer of a sandbox may lead to the API beside it. Clients disagree on unusual URLs (backslashes, tabs,
``http:path``, a user name before the host): a URL that is not plain is dropped.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import NamedTuple

_DEFAULT_PORTS = {b"http": 80, b"https": 443}
_SCHEME = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*:")
_NOT_PLAIN = re.compile(rb"[\x00-\x1f\x7f]")
_NOT_OF_URLS = re.compile(rb"[ \x80-\xff]")
_AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]{2,60}\]|[A-Za-z0-9._-]{1,255})(?::([0-9]{1,5}))?")
_REFERENCE = re.compile(rb"([^?#]*)(\?[^#]*)?(#.*)?")
# The header Refresh as browsers read it: a number of seconds, then a URL, which may have a name and quotes.
_REFRESH = re.compile(rb"[ ]*([0-9]{1,9})(?:\.[0-9]*)?[ ]*(?:[;,][ ]*(?:url[ ]*=[ ]*)?(.*))?", re.IGNORECASE)
_LINK = re.compile(
    rb"[ ]*<([^<>]*)>((?:[ ]*;[ ]*[A-Za-z0-9*_-]+(?:[ ]*=[ ]*(?:\"[^\"\\]*\"|[^ \",;<>]*))?)*)[ ]*(?:,|\Z)"
)
# The last label of a name that clients read as an IP address: 127.1, 0x7f000001, 2130706433.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOOPBACK_SUFFIX = ".localhost"


@dataclass(frozen=True, slots=True)
class ExposedPlace:
    """The target of a request: a port of a sandbox, and how the client named it."""

    port: int
    prefix: bytes  # "/v1/exposed/TOKEN"
    path: bytes = b"/"  # after the prefix
    host: bytes = b""  # the client's Host


class _Host(NamedTuple):
    name: str
    port: int | None


def moved_header(place: ExposedPlace, name: bytes, value: bytes) -> bytes | None:
    """The value of a header that the client may get. None: drop the header."""
    if name in (b"location", b"content-location"):
        return moved(place, value)
    if name == b"refresh":
        return _moved_refresh(place, value)
    if name == b"link":
        return _moved_links(place, value)
    return value


def moved(place: ExposedPlace, reference: bytes) -> bytes | None:
    """The URL that a reference means for the client. None: it leads to a forbidden or unclear place."""
    url = _NOT_OF_URLS.sub(lambda match: b"%%%02X" % match[0][0], reference.strip(b" "))
    match = _REFERENCE.fullmatch(url)
    # Browsers read a backslash as a slash, except in the query.
    if match is None or _NOT_PLAIN.search(url) or b"\\" in match[1]:
        return None
    rest = (match[2] or b"") + (match[3] or b"")
    path: bytes = match[1]
    scheme = b""
    if found := _SCHEME.match(path):
        scheme, path = found[0][:-1].lower(), path[found.end() :]
        if scheme not in _DEFAULT_PORTS or not path.startswith(b"//"):
            return None
    if not path.startswith(b"//"):
        return _below(place, _resolved(place, path) + rest)
    authority, slash, behind = path[2:].partition(b"/")
    host = _host(authority)
    if host is None:
        return None
    inside = _resolved(place, b"/" + behind) + rest
    own = _host(place.host)
    if own is not None and own.name == host.name:
        # Some applications combine the host that the client used with the port that they listen on.
        ours = _same_port(own.port, host.port, scheme) or host.port == place.port
        return _below(place, inside) if ours else None
    address = _address(host.name)
    loopback = host.name == "localhost" or host.name.endswith(_LOOPBACK_SUFFIX)
    if address is not None:
        mapped = getattr(address, "ipv4_mapped", None) or address
        loopback = mapped.is_loopback or mapped.is_unspecified
    if loopback:
        # With the exposed port the sandbox's server means itself; its other ports are not for the client.
        return _below(place, inside) if host.port == place.port else None
    if own is not None and own.port not in (None, *_DEFAULT_PORTS.values()) and own.port == host.port:
        return None  # probably this server under another name or address
    return (scheme + b":" if scheme else b"") + b"//" + authority + slash + behind + rest


def _moved_refresh(place: ExposedPlace, value: bytes) -> bytes | None:
    match = _REFRESH.fullmatch(value)
    if match is None:
        return None
    if match[2] is None:
        return b"%s" % match[1]
    url = match[2]
    if url[:1] in (b"'", b'"'):
        url = url[1:].partition(url[:1])[0]
    to = moved(place, url)
    return None if to is None else b"%s; url=%s" % (match[1], to)


def _moved_links(place: ExposedPlace, value: bytes) -> bytes | None:
    links: list[bytes] = []
    at = 0
    while at < len(value):
        match = _LINK.match(value, at)
        if match is None:
            return None
        to = moved(place, match[1])
        if to is not None:
            links.append(b"<%s>%s" % (to, match[2]))
        at = match.end()
    return b", ".join(links) or None


def _below(place: ExposedPlace, inside: bytes) -> bytes:
    """Put the prefix before ``inside``, an absolute path without dot segments, unless it is there already."""
    inside_prefix = inside.startswith(place.prefix) and inside[len(place.prefix) :][:1] in (b"", b"/", b"?", b"#")
    return inside if inside_prefix else place.prefix + inside


def _resolved(place: ExposedPlace, path: bytes) -> bytes:
    """Resolve to an absolute path at the sandbox's server (RFC 3986, 5.2). Dot segments cannot leave its root."""
    base = place.path
    if not path:
        path = base  # the same page, perhaps with another query
    elif not path.startswith(b"/"):
        path = base[: base.rfind(b"/") + 1] + path
    kept: list[bytes] = []
    segments = path.split(b"/")[1:]
    for at, segment in enumerate(segments):
        # Browsers decode dots before they look for dot segments.
        plain = segment.lower().replace(b"%2e", b".")
        last = at == len(segments) - 1
        if last:
            # Python's urljoin drops an empty parameter at the end: it makes a dot segment of `%2e%2e;`.
            plain = plain.removesuffix(b";")
        if plain == b"..":
            del kept[-1:]
        if plain not in (b".", b".."):
            kept.append(segment)
        elif last:
            kept.append(b"")
    return b"/" + b"/".join(kept)


def _host(authority: bytes) -> _Host | None:
    """Parse a host. None: it has a user name, escapes or non-ASCII letters, which clients read differently."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return None
    port = int(match[2]) if match[2] else None
    if port is not None and not 1 <= port <= 65535:
        return None
    name = match[1].decode("ascii").lower().removesuffix(".")
    if not name or (_is_number(name) and _address(name) is None):
        return None
    return _Host(name, port)


def _is_number(name: str) -> bool:
    return name.startswith("[") or _NUMBER.fullmatch(name.rpartition(".")[2]) is not None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a host means, in any of the notations that clients accept."""
    if not _is_number(name):
        return None
    try:
        if name.startswith("["):
            return ipaddress.IPv6Address(name[1:-1])
        return ipaddress.IPv4Address(socket.inet_aton(name))
    except (OSError, ValueError):
        return None


def _same_port(own: int | None, other: int | None, scheme: bytes) -> bool:
    """Whether a URL leads to the port that the client uses.

    If its Host names no port, only the client knows the scheme.
    """
    if own is None:
        return other in (None, *_DEFAULT_PORTS.values())
    if other is None:
        return own == _DEFAULT_PORTS[scheme] if scheme else own in _DEFAULT_PORTS.values()
    return own == other
