"""Parses the answer of a server in a sandbox, in whatever pieces it comes. The answer is untrusted. No I/O."""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ramet.doors.http.requests.errors import RequestRefused
from ramet.errors import Unreachable

_HEAD_BYTES = 64 * 1024
_HEADERS = 200
_STATUSES = range(200, 600)
_SWITCHING = 101
_NO_BODY = (204, 304)


class SandboxAnswer:
    """Takes the bytes that were read and returns those of the body. Raises RequestRefused (502) for a bad answer."""

    def __init__(self, method: str, websocket: bool) -> None:
        self._method = method
        self._websocket = websocket
        self._parser = HttpResponseParser(self)
        self._head_bytes = 0  # received before the head was complete
        self._between_bytes = 0  # received since the last piece of the body: chunk sizes and trailers
        self._header_bytes = 0
        self._pieces: list[bytes] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 0  # 0 until the head is complete
        self.complete = False
        self.switched = False  # the following bytes belong to another protocol
        self.behind = b""  # the first of these bytes, which came with the head
        self._interim = False
        self._until_end = False

    def feed(self, data: bytes) -> bytes:
        """Parse bytes, and return those of the body."""
        if self.complete:
            return b""  # discard what follows the answer
        if self.status:
            self._between_bytes += len(data)
        else:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._switch(data[upgrade.args[0] :])
        except HttpParserError as error:
            if not self.complete:
                raise _bad("its answer is not HTTP") from error
        if not self.status and self._head_bytes > _HEAD_BYTES:
            raise _bad("the head of its answer is too large")
        if self._between_bytes > _HEAD_BYTES and not self.complete:
            raise _bad("it does not stop sending after its answer")  # the parser holds back a trailer of any length
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def end(self) -> bool:
        """Note the end of the connection. Returns whether the answer is complete."""
        if not self.status:
            raise _bad("it closed the connection without an answer")
        if self._until_end:
            self.complete = True
        return self.complete

    def _switch(self, behind: bytes) -> None:
        if self._parser.get_status_code() != _SWITCHING or not self._websocket:
            raise _bad("it switched to another protocol")
        self.status, self.switched, self.behind = _SWITCHING, True, behind

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        if self.complete:
            raise HttpParserError("another answer")
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # a trailer
        # Checked for each header too: one large read can hold the whole head and the body.
        self._header_bytes += len(name) + len(value)
        if len(self.headers) >= _HEADERS or self._header_bytes > _HEAD_BYTES:
            raise HttpParserError("too many headers")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._interim = status < _STATUSES.start
        if self._interim:
            return  # an interim answer; the real one follows
        if status not in _STATUSES:
            raise HttpParserError("no such status")
        names = [name.lower() for name, _ in self.headers]
        if names.count(b"content-length") > 1 or names.count(b"transfer-encoding") > 1:
            raise HttpParserError("two lengths")
        self.status = status
        if self._method == "HEAD" or status in _NO_BODY:
            self.complete = True
        self._until_end = b"content-length" not in names and b"transfer-encoding" not in names

    def on_body(self, data: bytes) -> None:
        self._between_bytes = 0
        if not self.complete:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if not self._interim:
            self.complete = True


def _bad(what: str) -> RequestRefused:
    return RequestRefused(502, f"the server in the sandbox failed: {what}", code=Unreachable.code)
