"""Heads as they are passed on: written anew from what was read, with our own framing, without hop-by-hop fields.

Nothing is added that reveals a proxy. For hosts with secrets, placeholders become values in requests, and values become
stars in answers.
"""

from __future__ import annotations

from typing import NamedTuple

from ramet.network.http.decompression import Unpacker
from ramet.network.http.framing import CHUNKED
from ramet.network.http.heads import AnswerHead, Field, Fields, Malformed, written
from ramet.network.http.request_targets import Asked
from ramet.network.secrets.peer_secrets import HostSecrets
from ramet.network.secrets.replacing import GROWTH_BYTES_AT_MOST, Overgrown

_BETWEEN_HOPS = frozenset({
    b"connection", b"keep-alive", b"te", b"trailer", b"trailers", b"transfer-encoding", b"content-length", b"upgrade",
    b"http2-settings", b"host", b"expect",
})  # fmt: skip
# Answers in which secrets are masked must come whole and uncompressed: half a secret would not be found.
_NOT_TO_HOSTS_OF_SECRETS = frozenset({
    b"accept-encoding", b"range", b"if-range", b"x-ms-range", b"request-range", b"a-im", b"sec-websocket-extensions",
})  # fmt: skip
# Partial answers: 206, and the differences of RFC 3229. There are more ways to ask for one than we can strip: Apache
# accepts Request-Range for Range, and others read headers from the query.
_PARTS = frozenset({206, 226})
_WEBSOCKET = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
_CLOSE = (b"Connection", b"close")


def request_line(asked: Asked, secrets: HostSecrets | None) -> bytes:
    path = asked.path if secrets is None else secrets.in_target(asked.path)
    return b"%b %b HTTP/1.1\r\n" % (asked.head.method, path)


def request_fields(asked: Asked, secrets: HostSecrets | None, length: int | None, expect: bool) -> bytes:
    """The fields of a request. ``length``: of the body as sent. ``expect``: the client waits for "100 Continue"."""
    out = [(b"Host", asked.named)]
    passed = _passed(asked.head.fields, asked.connection)
    if secrets is None:
        out += [(name, value) for _, name, value in passed]
    else:
        out += _with_values([field for field in passed if field[0] not in _NOT_TO_HOSTS_OF_SECRETS], secrets)
        out.append((b"Accept-Encoding", b"identity"))
    if length == CHUNKED:
        out.append((b"Transfer-Encoding", b"chunked"))
    elif length is not None:
        out.append((b"Content-Length", b"%d" % length))
    if expect:
        out.append((b"Expect", b"100-continue"))
    if asked.websocket:
        out += _WEBSOCKET
    return written(out)


def _with_values(fields: list[Field], secrets: HostSecrets) -> list[tuple[bytes, bytes]]:
    out: list[tuple[bytes, bytes]] = []
    grown = 0
    for key, name, value in fields:
        out.append((name, secrets.in_header(key, value)))
        grown += len(out[-1][1]) - len(value)
        if grown > GROWTH_BYTES_AT_MOST:
            raise Overgrown
    return out


class AnswerPlan(NamedTuple):
    """How an answer is passed on."""

    head: bytes
    in_chunks: bool
    unpacker: Unpacker | None
    keep: bool  # whether the client's connection stays open afterwards


def plan_answer(head: AnswerHead, asked: Asked, secrets: HostSecrets | None, length: int, keep: bool) -> AnswerPlan:
    """Decide how to pass an answer on. ``length``: of the body as received. ``keep``: as far as the client allows it.

    Raises Malformed.
    """
    fields = _passed(head.fields, head.fields.listed(b"connection"))
    unpacker: Unpacker | None = None
    if secrets is not None:
        if head.status in _PARTS:
            raise Malformed("it is a partial answer to a request that did not ask for a range")
        fields, unpacker = _unpacked(fields, head.fields.listed(b"content-encoding"))
    out = _masked_fields(fields, secrets)
    in_chunks = False
    if length == 0 or (length > 0 and unpacker is None):
        out += _told_length(head, asked, length, unpacker is not None)
    elif asked.head.minor == 1:
        in_chunks = True
        out.append((b"Transfer-Encoding", b"chunked"))
    else:
        keep = False  # for HTTP/1.0 the body ends with the connection
    if not keep:
        out.append(_CLOSE)
    return AnswerPlan(_status_line(head, secrets) + written(out), in_chunks, unpacker if length else None, keep)


def interim_head(head: AnswerHead, secrets: HostSecrets | None) -> bytes:
    """The head of an interim answer, such as 100 or 103."""
    fields = _passed(head.fields, head.fields.listed(b"connection"))
    return _status_line(head, secrets) + written(_masked_fields(fields, secrets))


def switching_head(head: AnswerHead, secrets: HostSecrets | None) -> bytes:
    """The head of the answer that switches to a websocket. Raises Malformed."""
    fields = _passed(head.fields, head.fields.listed(b"connection"))
    if secrets is not None and any(key == b"sec-websocket-extensions" for key, _, _ in fields):
        raise Malformed("it uses a websocket extension that the request did not ask for")
    return _status_line(head, secrets) + written(_masked_fields(fields, secrets) + _WEBSOCKET)


def _passed(fields: Fields, connection: list[bytes]) -> list[Field]:
    # Fields named in Connection are for this hop only, and so are all of a proxy's own.
    dropped = _BETWEEN_HOPS.union(connection) if connection else _BETWEEN_HOPS
    return [field for field in fields.all if field[0] not in dropped and not field[0].startswith(b"proxy-")]


def _masked_fields(fields: list[Field], secrets: HostSecrets | None) -> list[tuple[bytes, bytes]]:
    if secrets is None:
        return [(name, value) for _, name, value in fields]
    return [(secrets.masked(name), secrets.masked(value)) for _, name, value in fields]


def _status_line(head: AnswerHead, secrets: HostSecrets | None) -> bytes:
    reason = head.reason if secrets is None else secrets.masked(head.reason)
    return b"HTTP/1.1 %d %b\r\n" % (head.status, reason)


def _told_length(head: AnswerHead, asked: Asked, length: int, compressed: bool) -> list[tuple[bytes, bytes]]:
    if head.status == 204:
        return []
    if head.status == 304 or asked.head.method == b"HEAD":
        # The length that a body would have had; unknown if it would have been decompressed.
        told = head.fields.values(b"content-length") if not compressed else []
        return [(b"Content-Length", value) for value in told]
    return [(b"Content-Length", b"%d" % length)]


def _unpacked(fields: list[Field], listed: list[bytes]) -> tuple[list[Field], Unpacker | None]:
    """Remove a compression that was not asked for: the other fields, and what decompresses the body.

    Raises Malformed.
    """
    codings = [coding for coding in listed if coding != b"identity"]
    if not codings:
        return fields, None
    if len(codings) > 1 or not Unpacker.knows(codings[0]):
        raise Malformed("its body has a compression that the request did not ask for")
    return [field for field in fields if field[0] != b"content-encoding"], Unpacker(codings[0])
