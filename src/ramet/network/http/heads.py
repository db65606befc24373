"""Heads of HTTP/1 messages, read strictly: what two programs could read differently is refused, not repaired.

request:   METHOD SP target SP HTTP/1.x CRLF
answer:    HTTP/1.x SP status [SP reason] CRLF
then       name ":" value CRLF for each field, and CRLF
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD_BYTES_AT_MOST = 64 * 1024

# Name in lower case, name as written, value without surrounding blanks.
Field = tuple[bytes, bytes, bytes]

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_TEXT = rb"[^\x00-\x08\x0a-\x1f\x7f]*"  # no control characters except tab
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*(" + _TEXT + rb")\r\n")
_FIELDS = re.compile(rb"(?:" + _TOKEN + rb":" + _TEXT + rb"\r\n)*\r\n")
_REQUEST = re.compile(rb"([A-Z][A-Z-]{0,23}) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])\r\n")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: (" + _TEXT + rb"))?\r\n")
_BARE = re.compile(rb"\r(?!\n)|(?<!\r)\n")
# TRACE returns to a program what others have added to its request, such as a secret. PRI begins HTTP/2.
_ODD_METHODS = frozenset({b"TRACE", b"TRACK", b"PRI"})


class Malformed(Exception):
    """A message that is refused. Its text gives the reason and quotes nothing of the message."""


class Fields:
    """The fields of one head, in order. Looking up a missing field is cheap."""

    __slots__ = ("_names", "all")

    def __init__(self, all: list[Field]) -> None:
        self.all = all
        self._names = {field[0] for field in all}

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, _, value in self.all if key == name] if name in self._names else []

    def listed(self, name: bytes) -> list[bytes]:
        """The comma-separated items of a field, in lower case."""
        parts = [part.strip(b" \t") for value in self.values(name) for part in value.lower().split(b",")]
        return [part for part in parts if part]


# Named tuples, because they are made for each message, and frozen dataclasses take five times as long.
class RequestHead(NamedTuple):
    method: bytes
    target: bytes
    minor: int  # minor version: HTTP/1.0 or 1.1
    fields: Fields


class AnswerHead(NamedTuple):
    status: int
    reason: bytes
    minor: int
    fields: Fields


def read_request(head: bytes) -> RequestHead:
    """Parse a request head, which ends with the empty line. Raises Malformed."""
    match = _REQUEST.match(head)
    if match is None:
        raise Malformed(_why_no_request_line(head))
    method, target, minor = match.groups()
    if method in _ODD_METHODS:
        raise Malformed("requests with this method are not passed on")
    return RequestHead(method, target, int(minor), _fields(head, match.end()))


def read_answer(head: bytes) -> AnswerHead:
    """Parse an answer's head, which ends with the empty line. Raises Malformed."""
    match = _STATUS.match(head)
    if match is None:
        raise Malformed("the status line is not one of HTTP/1")
    minor, status, reason = match.groups()
    return AnswerHead(int(status), reason or b"", int(minor), _fields(head, match.end()))


def check_beginning(data: bytes, seen: int = 0) -> None:
    """Raise Malformed if this cannot become the head of a request, so that the caller need not wait for the rest.

    ``seen``: how much of it was checked before. A head may arrive byte by byte.
    """
    line_end = data.find(b"\n", seen) + 1
    if line_end and data.find(b"\n", 0, seen) < 0 and _REQUEST.match(data[:line_end]) is None:
        raise Malformed(_why_no_request_line(data))
    if not b"A" <= data[:1] <= b"Z":
        raise Malformed("it does not begin as a request of HTTP/1 does")
    # A final carriage return may get its line feed with the next bytes.
    if _BARE.search(data, max(0, seen - 1), len(data) - data.endswith(b"\r")):
        raise Malformed("a line does not end in CR LF")


def written(fields: list[tuple[bytes, bytes]]) -> bytes:
    """Fields and the empty line, as they are sent."""
    return b"".join([b"%b: %b\r\n" % field for field in fields]) + b"\r\n"


def trailers_end(data: bytes) -> int:
    """Where the trailer fields after a chunked body end, including the empty line. 0: incomplete. Raises Malformed."""
    if data.startswith(b"\r\n"):
        return 2
    end = data.find(b"\r\n\r\n") + 4
    if end < 4:
        return 0
    _fields(data[:end], 0)
    return end


def _fields(head: bytes, start: int) -> Fields:
    # Check all of it first: findall skips over what does not match.
    if _FIELDS.fullmatch(head, start) is None:
        raise Malformed(_why_no_fields(head, start))
    return Fields([(name.lower(), name, value.rstrip(b" \t")) for name, value in _FIELD.findall(head, start)])


def _why_no_request_line(head: bytes) -> str:
    line = head.partition(b"\n")[0]
    if head.startswith(b"PRI * HTTP/2"):
        return "it is HTTP/2 in the clear; HTTP/1.1 is understood here"
    if not line.endswith(b"\r"):
        return "a line does not end in CR LF"
    if re.fullmatch(rb"[A-Z]+ [^ ]+\r", line):
        return "the request line has no version: HTTP/0.9 is not understood"
    if re.search(rb" HTTP/(?!1\.[01]\r)[0-9.]+\r", line):
        return "the version is neither HTTP/1.1 nor HTTP/1.0"
    if not re.match(rb"[A-Z][A-Z-]{0,23} ", line):
        return "the method is not valid"
    return "the request line is not 'METHOD target HTTP/1.1'"


def _why_no_fields(head: bytes, start: int) -> str:
    if _BARE.search(head, start):
        return "a line of the head does not end in CR LF"
    for line in head[start:].split(b"\r\n"):
        if line[:1] in (b" ", b"\t"):
            return "a header continues on a second line"
        if line and not re.match(_TOKEN + rb":", line):
            return "a line of the head is not 'name: value'"
        if not re.fullmatch(_TEXT, line):
            return "a header has a control character in it"
    return "the head is malformed"
