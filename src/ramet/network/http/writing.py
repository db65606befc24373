"""Heads as they are passed on: written anew from what was read, with framing of our own, without what is between hops.

Nothing is added that tells of a proxy. Where secrets are for the host, placeholders become values on the way out, and
values stars on the way back.
"""

from __future__ import annotations

from typing import NamedTuple

from ramet.network.http.asking import Asked
from ramet.network.http.decoding import Unpacker
from ramet.network.http.framing import CHUNKED
from ramet.network.http.heads import AnswerHead, Field, Fields, Malformed, written
from ramet.network.secrets.guest_secrets import HostSecrets
from ramet.network.secrets.replacing import GROWTH_BYTES_AT_MOST, Overgrown

_BETWEEN_HOPS = frozenset({
    b"connection", b"keep-alive", b"te", b"trailer", b"trailers", b"transfer-encoding", b"content-length", b"upgrade",
    b"http2-settings", b"host", b"expect",
})  # fmt: skip
# Where answers are looked into, they must come whole and not compressed: half a secret would not be found.
_NOT_TO_HOSTS_OF_SECRETS = frozenset({
    b"accept-encoding", b"range", b"if-range", b"x-ms-range", b"request-range", b"a-im", b"sec-websocket-extensions",
})  # fmt: skip
# Of a secret, too: 206, and the differences of RFC 3229. There are more ways to ask for one than anybody knows: Apache
# takes Request-Range for Range, others take headers from the query.
_PARTS = frozenset({206, 226})
_WEBSOCKET = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
_CLOSE = (b"Connection", b"close")


def request_line(asked: Asked, secrets: HostSecrets | None) -> bytes:
    path = asked.path if secrets is None else secrets.in_target(asked.path)
    return b"%b %b HTTP/1.1\r\n" % (asked.head.method, path)


def request_fields(asked: Asked, secrets: HostSecrets | None, length: int | None, expect: bool) -> bytes:
    """``length``: of the body as it will be sent. ``expect``: the client waits for a word before it sends its body."""
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
    keep: bool  # the client's connection, behind it


def plan_answer(head: AnswerHead, asked: Asked, secrets: HostSecrets | None, length: int, keep: bool) -> AnswerPlan:
    """``length`` is that of the body as it comes; ``keep``: as far as the client is concerned."""
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
        keep = False  # the end of the connection is the end of the body, for HTTP/1.0
    if not keep:
        out.append(_CLOSE)
    return AnswerPlan(_status_line(head, secrets) + written(out), in_chunks, unpacker if length else None, keep)


def interim_head(head: AnswerHead, secrets: HostSecrets | None) -> bytes:
    """Of a word before the answer: 100, 103."""
    fields = _passed(head.fields, head.fields.listed(b"connection"))
    return _status_line(head, secrets) + written(_masked_fields(fields, secrets))


def switching_head(head: AnswerHead, secrets: HostSecrets | None) -> bytes:
    """Of the answer behind which there is a websocket."""
    fields = _passed(head.fields, head.fields.listed(b"connection"))
    if secrets is not None and any(key == b"sec-websocket-extensions" for key, _, _ in fields):
        raise Malformed("it uses a websocket extension that the request did not ask for")
    return _status_line(head, secrets) + written(_masked_fields(fields, secrets) + _WEBSOCKET)


def _passed(fields: Fields, connection: list[bytes]) -> list[Field]:
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
        # Of the body that there would have been; nobody knows what it is unpacked.
        told = head.fields.values(b"content-length") if not compressed else []
        return [(b"Content-Length", value) for value in told]
    return [(b"Content-Length", b"%d" % length)]


def _unpacked(fields: list[Field], listed: list[bytes]) -> tuple[list[Field], Unpacker | None]:
    """Without the compression that nobody has asked for, and what it takes to undo it."""
    codings = [coding for coding in listed if coding != b"identity"]
    if not codings:
        return fields, None
    if len(codings) > 1 or not Unpacker.knows(codings[0]):
        raise Malformed("its body has a compression that the request did not ask for")
    return [field for field in fields if field[0] != b"content-encoding"], Unpacker(codings[0])
