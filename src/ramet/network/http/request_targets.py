"""The host and port that a request asks for, read from its target and checked against the rest of its head."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ramet.network.http.framing import request_length
from ramet.network.http.heads import Malformed, RequestHead
from ramet.protocol.network.rules import host_address, host_name

_ABSOLUTE = re.compile(rb"http://([^/?#]*)([^#]*)", re.IGNORECASE)
_ANY_URL = re.compile(rb"([A-Za-z]{1,10})://([^/?#]*)")
_LINE_LOOKED_AT = 2000
_PATH = re.compile(rb"[\x21\x22\x24-\x7e\x80-\xff]+")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/\\]+)(?::([0-9]{1,5}))?")


class Connect(NamedTuple):
    """A request for a tunnel."""

    host: str
    port: int


class Asked(NamedTuple):
    """A request and where it goes."""

    head: RequestHead  # its own, or that of an earlier request that differs only in its target
    host: str  # a name in the form that rules compare, or an address
    port: int
    named: bytes  # the host as sent to the server
    path: bytes  # and query
    length: int | None  # length of the body, see ``framing``
    connection: list[bytes]  # options of this connection, which are also the names of fields that are not passed on
    keep: bool  # whether another request may follow
    websocket: bool


class Repeated:
    """A request that the next one probably repeats except for its path, so that only the path has to be read."""

    def __init__(self, head: bytes, asked: Asked) -> None:
        self._asked = asked
        method, target = asked.head.method, asked.head.target
        # The head up to the path's leading slash, and what follows the path. Not usable if we added that slash
        # ourselves.
        usable = asked.path.startswith(b"/") and target.endswith(asked.path)
        start = len(method) + 1 + len(target) - len(asked.path) + 1
        # No head begins with a line feed, so this never matches.
        self._start = head[:start] if usable else b"\n"
        self._rest = head[len(method) + 1 + len(target) :]

    def read(self, head: bytes) -> Asked | None:
        """Read a head that repeats this one. None: it differs in more than its path."""
        path_end = len(head) - len(self._rest)
        if not head.startswith(self._start) or not head.endswith(self._rest) or path_end < len(self._start):
            return None
        path = head[len(self._start) - 1 : path_end]
        # The path decides nothing about where the request goes, but it must be one that `read_request` would accept.
        return self._asked._replace(path=path) if _PATH.fullmatch(path) else None


def read_asked(head: RequestHead, fixed: tuple[str, int] | None, secure: bool) -> Asked | Connect:
    """Read where a request goes. Raises Malformed.

    ``fixed``: the host and port of the connection. Without it, the client knows that we are a proxy and sends a whole
    URL.
    """
    length = request_length(head)
    if head.method == b"CONNECT":
        if fixed is not None:
            raise Malformed("it asks for a tunnel inside of another one")
        return _tunnel(head, length)
    usual_port = 443 if secure else 80
    if fixed is None:
        host, port, path = _whole_url(head.target)
        named = _host_named(head, host, port, port == usual_port, usual_port)
    else:
        (host, port), path = fixed, _path(head)
        named = _host_named(head, host, port, True, usual_port)
    connection = head.fields.listed(b"connection")
    upgrade = head.fields.listed(b"upgrade") if b"upgrade" in connection else []
    return Asked(
        head,
        host,
        port,
        named,
        path,
        length,
        connection,
        keep=head.minor == 1 and b"close" not in connection,
        websocket=upgrade == [b"websocket"] and head.method == b"GET" and head.minor == 1 and not length,
    )


def asked_for(head: bytes) -> tuple[str, int]:
    """The host and port in the first line of something that may not be a request, for the log.

    Empty and 0: none found.
    """
    method, _, rest = head[:_LINE_LOOKED_AT].partition(b"\r\n")[0].partition(b" ")
    target = rest.split(b" ")[0]
    match = _ANY_URL.match(target)
    if match is None and method != b"CONNECT":
        return "", 0
    scheme, authority = (b"", target) if match is None else match.groups()
    host = authority.rpartition(b"@")[2]  # a password does not belong in a log
    name, colon, port = host.rpartition(b":")
    if not colon or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        return host.decode("latin-1"), 443 if scheme.lower() == b"https" else 80 if scheme else 0
    return name.decode("latin-1"), int(port)


def _tunnel(head: RequestHead, length: int | None) -> Connect:
    host, port = _authority(head.target)
    if port is None:
        raise Malformed("it asks for a tunnel without a port: 'CONNECT host:port'")
    if length is not None:
        raise Malformed("it asks for a tunnel and has a body")
    if head.fields.values(b"host") or head.minor == 1:
        # Some clients leave the port out of Host here.
        _host_named(head, host, port, True, port)
    return Connect(host, port)


def _whole_url(target: bytes) -> tuple[str, int, bytes]:
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise Malformed(_why_no_url(target))
    host, port = _authority(match[1])
    path = match[2]
    return host, 80 if port is None else port, path if path.startswith(b"/") else b"/" + path


def _path(head: RequestHead) -> bytes:
    target = head.target
    if (not target.startswith(b"/") or b"#" in target) and (head.method, target) != (b"OPTIONS", b"*"):
        raise Malformed("its target is not a path, and this port is not a proxy")
    return target


def _host_named(head: RequestHead, host: str, port: int, port_may_be_left_out: bool, usual_port: int) -> bytes:
    """Check that the single Host field names the same host, and return it as it is passed on. Raises Malformed.

    A server that trusts Host where we trusted the target would serve another site than the rules allowed.
    """
    hosts = head.fields.values(b"host")
    if not hosts and head.minor == 1:
        raise Malformed("it has no Host")
    if len(hosts) > 1:
        raise Malformed("it has more than one Host")
    shown = f"[{host}]" if ":" in host else host
    if not hosts:
        return (shown if port == usual_port else f"{shown}:{port}").encode()
    said, said_port = _authority(hosts[0])
    if said != host or (said_port != port and not (said_port is None and port_may_be_left_out)):
        raise Malformed("its Host is not the host that it goes to")
    return (shown if said_port is None else f"{shown}:{port}").encode()


@lru_cache(maxsize=1000)
def _authority(text: bytes) -> tuple[str, int | None]:
    if b"@" in text:
        raise Malformed("it has a user's name in its URL; that belongs into the header Authorization")
    match = _AUTHORITY.fullmatch(text.decode("latin-1"))
    port = int(match[2]) if match is not None and match[2] else None
    if match is None or not match[1].isascii() or (port is not None and not 1 <= port <= 65535):
        raise Malformed("the host that it is for is not 'name' or 'name:port'")
    address = host_address(match[1])
    host = str(address) if address is not None else host_name(match[1])
    if host is None:
        raise Malformed("the host that it is for is neither a name nor an address")
    return host, port


def _why_no_url(target: bytes) -> str:
    lower = target.lower()
    if lower.startswith(b"https://"):
        return "a proxy cannot be asked for https:// in the clear; use CONNECT, as HTTPS_PROXY makes clients do"
    if b"#" in target:
        return "its target has a '#' in it, which stays with the client"
    if target.startswith(b"/") or target == b"*":
        return "it asks a proxy for a path alone; the whole URL is needed: http://host/path"
    return "its target is not an http:// URL"
