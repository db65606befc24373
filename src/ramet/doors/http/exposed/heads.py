"""Rewrites heads of requests and answers between clients and servers in sandboxes. No I/O.

Neither side may harm the other. A client's key and cookies belong to this server, not to code in a sandbox. The answers
of that code come from the same origin as the API, where a browser would let them act for its user. So pages of a
sandbox get an opaque origin (``Content-Security-Policy: sandbox``), headers that speak for the whole origin are
dropped, and redirects may not lead to another part of this server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ramet.doors.http.exposed.links import ExposedPlace, moved_header
from ramet.doors.http.requests.errors import Headers, RequestRefused

# Headers of a connection, not of the message (RFC 9110, 7.6.1), with those of old proxies.
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NOT_FOR_SANDBOXES = _HOP_BY_HOP | {
    b"authorization",  # may hold a key of this server
    b"cookie",
    b"cookie2",
    b"host",
    b"content-length",
    b"expect",  # the worker answers it
    b"forwarded",
    b"x-forwarded-for",  # where a client comes from is not the sandbox's business
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-prefix",
    b"x-forwarded-proto",
    b"x-real-ip",
}
_NOT_FROM_SANDBOXES = _HOP_BY_HOP | {
    b"content-length",
    b"date",  # the worker sets its own
    # Headers that apply to the whole origin:
    b"set-cookie",
    b"set-cookie2",
    b"clear-site-data",
    b"strict-transport-security",
    b"public-key-pins",
    b"alt-svc",
    b"nel",
    b"report-to",
    b"service-worker-allowed",
    b"www-authenticate",  # a browser would ask for a password in the name of this server, and send it to us
    b"authentication-info",
    b"referrer-policy",
    b"x-content-type-options",
    # Commands to a proxy in front of this server:
    b"x-sendfile",
    b"x-accel-redirect",
    b"x-accel-charset",
    b"x-accel-expires",
    b"x-accel-limit-rate",
    b"x-lighttpd-send-file",
    b"x-lighttpd-sendfile",
    b"x-reproxy-url",
    b"x-reproxy-file",
}
# Without allow-same-origin, the page has an opaque origin and not the one that it came from.
_ORIGIN_OF_ITS_OWN: Headers = [
    (
        b"content-security-policy",
        b"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),  # the token is part of the URL
]
# No underscores, though the RFC allows them: many servers turn '-' into '_', and would mix up two headers.
_NAME = re.compile(rb"[a-z0-9!#$%&'*+.^`|~-]+")
_FORBIDDEN_IN_VALUES = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET = re.compile(rb"/[!-~]*")
_METHOD = re.compile(rb"[A-Z][A-Z-]{0,31}")
_HOST = re.compile(rb"[A-Za-z0-9.:\[\]_-]{1,255}")
_WEBSOCKET = b"websocket"
_NO_BODY = (204, 304)


@dataclass(frozen=True, slots=True)
class ExposedRequestHead:
    """A request as the server in a sandbox gets it."""

    data: bytes
    chunked: bool
    body: bool
    websocket: bool


def request_head(
    place: ExposedPlace, method: str, path: bytes, query: bytes, headers: Iterable[tuple[bytes, bytes]]
) -> ExposedRequestHead:
    """The head that is written to the sandbox. Raises RequestRefused if we and the server could read it differently."""
    target = path + b"?" + query if query else path
    verb = method.encode("ascii", "replace")
    given = list(headers)
    if not _TARGET.fullmatch(target) or not _METHOD.fullmatch(verb) or verb == b"CONNECT":
        raise RequestRefused(400, "this request cannot be passed on", code="http")
    found = dict(given)
    named = _named_by_connection(given)
    websocket = b"upgrade" in named and found.get(b"upgrade", b"").strip().lower() == _WEBSOCKET
    if b"upgrade" in named and (not websocket or method != "GET"):
        raise RequestRefused(501, "the only protocol that can be passed on is websocket", code="http")
    length = found.get(b"content-length")
    chunked = b"transfer-encoding" in found
    if chunked and found[b"transfer-encoding"].strip().lower() != b"chunked":
        raise RequestRefused(400, "the body has a transfer encoding that cannot be passed on", code="http")
    lines = [
        b"%s %s HTTP/1.1" % (verb, target),
        b"host: localhost:%d" % place.port,
        *_forwarded(place, found),
        *(b"%s: %s" % pair for pair in _passed(given, named | _NOT_FOR_SANDBOXES)),
    ]
    if websocket:
        lines += [b"connection: Upgrade", b"upgrade: websocket"]
    else:
        lines.append(b"connection: close")
    if chunked:
        lines.append(b"transfer-encoding: chunked")
    elif length is not None:
        if not length.isdigit():
            raise RequestRefused(400, "the length of the body is not a number", code="http")
        lines.append(b"content-length: %s" % length)
    body = chunked or (length is not None and int(length) > 0)
    return ExposedRequestHead(b"\r\n".join((*lines, b"", b"")), chunked, body, websocket)


def _forwarded(place: ExposedPlace, found: dict[bytes, bytes]) -> Iterator[bytes]:
    """Headers from which applications make links to themselves."""
    host = found.get(b"host", b"")
    if _HOST.fullmatch(host):
        yield b"x-forwarded-host: %s" % host
    secure = found.get(b"x-forwarded-proto", b"").strip().lower() == b"https"
    yield b"x-forwarded-proto: %s" % (b"https" if secure else b"http")
    yield b"x-forwarded-prefix: %s" % place.prefix


def answer_headers(
    place: ExposedPlace, status: int, headers: Iterable[tuple[bytes, bytes]], origin: bytes | None
) -> Headers:
    """The headers that the client gets. The length stays if the answer has one and a body may follow."""
    given = [(name.lower(), value) for name, value in headers]
    found = dict(given)
    passed = list(_passed(given, _named_by_connection(given) | _NOT_FROM_SANDBOXES))
    moved = [(name, moved_header(place, name, value)) for name, value in passed]
    kept = [(name, value) for name, value in moved if value is not None]
    length = found.get(b"content-length")
    if length is not None and b"transfer-encoding" not in found and status not in _NO_BODY:
        kept.append((b"content-length", length))
    return [*kept, *_ORIGIN_OF_ITS_OWN, *_readable(found, origin)]


def upgrade_head(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The answer that begins a websocket."""
    given = [(name.lower(), value) for name, value in headers]
    passed = _passed(given, _named_by_connection(given) | _NOT_FROM_SANDBOXES)
    lines = [b"HTTP/1.1 101 Switching Protocols", *(b"%s: %s" % pair for pair in passed)]
    return b"\r\n".join((*lines, b"connection: Upgrade", b"upgrade: websocket", b"", b""))


def preflight_headers(requested: bytes | None) -> Headers:
    """Answer a preflight of a page with an opaque origin: everybody who knows the token may send requests."""
    headers = [
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"),
        (b"access-control-max-age", b"600"),
    ]
    if requested is not None and re.fullmatch(rb"[A-Za-z0-9, _-]{1,1000}", requested):
        headers.append((b"access-control-allow-headers", requested))
    return headers


def _readable(found: dict[bytes, bytes], origin: bytes | None) -> Headers:
    """Let pages with an opaque origin read the answers to their own requests."""
    if origin != b"null" or b"access-control-allow-origin" in found:
        return []
    return [(b"access-control-allow-origin", b"*")]


def _named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    values = b",".join(value for name, value in headers if name == b"connection")
    return frozenset(word.strip().lower() for word in values.split(b","))


def _passed(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for name, value in headers:
        if name not in dropped and _NAME.fullmatch(name) and not _FORBIDDEN_IN_VALUES.search(value):
            yield name, value
