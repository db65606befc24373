"""How long a body is: given in advance, in chunks, or until the connection ends. Ambiguous lengths are refused.

chunk:   size in hexadecimal [";" extension] CRLF, that many bytes, CRLF; after one of size 0, trailer fields
"""

from __future__ import annotations

import re

from ramet.network.http.heads import AnswerHead, Fields, Malformed, RequestHead, trailers_end

# 0 or more: the length in bytes, known in advance.
CHUNKED = -1
UNTIL_END = -2
LAST_CHUNK = b"0\r\n\r\n"

_LENGTH = re.compile(rb"[0-9]{1,18}")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]{0,256})?\r\n")
_SIZE_LINE_AT_MOST = 300
_TRAILERS_AT_MOST = 16 * 1024


def request_length(head: RequestHead) -> int | None:
    """Length of a request's body. None: there is no body. Raises Malformed."""
    return _told(head.fields, head.minor)


def answer_length(head: AnswerHead, method: bytes) -> int:
    """Length of an answer's body. Raises Malformed."""
    length = _told(head.fields, head.minor)  # parsed even if there is no body, so that odd lengths are refused
    if method == b"HEAD" or head.status in (204, 304) or head.status < 200:
        return 0
    return UNTIL_END if length is None else length


def _told(fields: Fields, minor: int) -> int | None:
    lengths = fields.values(b"content-length")
    codings = fields.values(b"transfer-encoding")
    if not lengths and not codings:
        return None
    # Two lengths are how requests are smuggled: one program uses the first, another the second.
    if lengths and codings:
        raise Malformed("it has both Content-Length and Transfer-Encoding")
    if codings:
        if minor == 0:
            raise Malformed("it has Transfer-Encoding, which HTTP/1.0 does not have")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise Malformed("its Transfer-Encoding is not 'chunked'")
        return CHUNKED
    if len(lengths) > 1:
        raise Malformed("it has more than one Content-Length")
    if _LENGTH.fullmatch(lengths[0]) is None:
        raise Malformed("its Content-Length is not a number")
    return int(lengths[0])


class Chunks:
    """Parses the chunks of one body."""

    def __init__(self) -> None:
        self.ended = False
        self.rest = b""  # bytes after the body
        self._held = b""  # the beginning of an incomplete line
        self._left = 0  # unread bytes of the current chunk, including the CRLF after it
        self._in_trailers = False

    def feed(self, data: bytes) -> bytes:
        """Parse more input and return its payload. Must not be called once it has ended. Raises Malformed."""
        if self._held:
            data, self._held = self._held + data, b""
        view = memoryview(data)  # there may be many chunks: copy each only once, into the result
        pieces: list[memoryview] = []
        at = 0
        while at < len(data) and not self._in_trailers:
            if self._left > 2:
                end = min(len(data), at + self._left - 2)
                pieces.append(view[at:end])
                self._left -= end - at
                at = end
            elif self._left:
                at = self._after_chunk(data, at)
            else:
                start = self._after_size(data, at)
                if not start:
                    self._held = data[at:]
                    break
                at = start
        if self._in_trailers:
            self._take_trailers(data[at:])
        return b"".join(pieces)

    def _after_chunk(self, data: bytes, at: int) -> int:
        wanted = b"\r\n"[2 - self._left :]
        found = data[at : at + self._left]
        if not wanted.startswith(found):
            raise Malformed("a chunk is longer than its size")
        self._left -= len(found)
        return at + len(found)

    def _after_size(self, data: bytes, at: int) -> int:
        """Parse a size line. Returns where the chunk begins; 0: the line is incomplete."""
        match = _SIZE.match(data, at)
        if match is None:
            if data.find(b"\n", at, at + _SIZE_LINE_AT_MOST) >= 0 or len(data) - at >= _SIZE_LINE_AT_MOST:
                raise Malformed("the size of a chunk is not a number")
            return 0
        size = int(match[1], 16)
        if size:
            self._left = size + 2
        else:
            self._in_trailers = True
        return match.end()

    def _take_trailers(self, data: bytes) -> None:
        end = trailers_end(data)
        if end:
            self.ended, self.rest = True, data[end:]
        elif len(data) > _TRAILERS_AT_MOST:
            raise Malformed("there is too much data after the last chunk")
        else:
            self._held = data
