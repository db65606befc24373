"""HTTP messages without I/O: the bytes of a request, and an answer assembled from the pieces in which it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ramet.errors import ProtocolError
from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder
from ramet.transport.http.address import Address
from ramet.transport.http.routes import Route

_FRAMES_TYPE = calls.FRAMES_TYPE.encode("ascii")

_READ_BYTES = 64 * 1024
_READ_BYTES_AT_MOST = 1024 * 1024
_HEAD_BYTES_AT_MOST = 64 * 1024
# Limit for a refusal: enough for any message, and protection against a server that never stops sending.
REFUSAL_BYTES_AT_MOST = 64 * 1024


def request_head(address: Address, route: Route) -> bytes:
    """Return the beginning of every request to a server.

    Its values were checked for line breaks when they were read.
    """
    lines = [b"POST %s HTTP/1.1" % route.target, b"Host: %s" % address.authority.encode("ascii")]
    if address.key is not None:
        lines.append(b"Authorization: Bearer %s" % address.key.encode("ascii"))
    lines += [b"User-Agent: ramet", b"Content-Type: %s" % _FRAMES_TYPE]
    return b"\r\n".join((*lines, route.authorization))


def chunk(data: bytes) -> bytes:
    """Encode a piece of a request body whose length is not known in advance."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


_HEAD_COMPLETE, _COMPLETE = b"\0head complete", b"\0complete"  # stored beside header names, which contain no such bytes


class _Received:
    """Collects what the parser reports. Holds no reference to the parser, so that both are freed at once.

    Its callbacks are C functions. A signal handler could run inside a Python function, and the parser would turn an
    exception of it, such as KeyboardInterrupt, into an error of its own.
    """

    __slots__ = (
        "_said",
        "on_body",
        "on_header",
        "on_headers_complete",
        "on_message_begin",
        "on_message_complete",
        "pieces",
    )

    def __init__(self) -> None:
        self._said: dict[bytes, bytes] = {}
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.on_header = self._said.__setitem__
        # An interim message with a status below 200 may come first; the next message replaces it.
        self.on_message_begin = self._said.clear
        self.on_headers_complete = partial(self._said.__setitem__, _HEAD_COMPLETE, b"")
        self.on_message_complete = partial(self._said.__setitem__, _COMPLETE, b"")

    @property
    def head_complete(self) -> bool:
        return _HEAD_COMPLETE in self._said

    @property
    def complete(self) -> bool:
        return _COMPLETE in self._said

    def headers(self) -> dict[bytes, bytes]:
        """Return the headers by lower-case name."""
        return {name.lower(): value for name, value in self._said.items()}


class HttpAnswer:
    """The answer to one request. Do not feed it again after a ProtocolError."""

    def __init__(self) -> None:
        self._frames: Iterator[Frame] = iter(())
        self._decoder = FrameDecoder(FROM_ENGINE)
        self._head_bytes = 0
        self._refusal = bytearray()
        self.begun = False  # at least one byte has arrived
        self.over = False  # the final frame was handed out
        self.status = 0  # set once the head is complete
        self.headers: dict[bytes, bytes] = {}  # likewise
        self._received = _Received()
        self._parser = HttpResponseParser(self._received)
        self._is_frames = False
        self._is_lasting = False

    @property
    def complete(self) -> bool:
        """Whether the whole answer has arrived, down to the last byte."""
        return self._received.complete

    @property
    def refused(self) -> bool:
        """Whether the head is complete and does not announce frames."""
        return self.status != 0 and not self._is_frames

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request once this answer is complete."""
        return self.over and self._is_lasting

    @property
    def refusal(self) -> bytes:
        return bytes(self._refusal)

    @property
    def wanted_bytes(self) -> int:
        """Return a good size for the next read."""
        missing_bytes = self._decoder.missing_bytes if self._decoder.in_frame else 0
        return min(missing_bytes, _READ_BYTES_AT_MOST) if missing_bytes > _READ_BYTES else _READ_BYTES

    def feed(self, data: bytes) -> None:
        """Take in bytes that were read. Call it only when ``next_frame`` has returned None."""
        self.begun = True
        received = self._received
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise ProtocolError("the server switched to another protocol than HTTP/1.1") from None
        except HttpParserError as error:
            raise ProtocolError(f"what the server answered is not HTTP: {error}") from None
        if not self.status:
            if not received.head_complete:
                self._head_bytes += len(data)
                if self._head_bytes > _HEAD_BYTES_AT_MOST:
                    raise ProtocolError(f"the server answered with a head of more than {_HEAD_BYTES_AT_MOST} bytes")
                return
            self._on_head()
            if self.status < 200:
                self.status = 0
                return
        if received.pieces:
            body = received.pieces[0] if len(received.pieces) == 1 else b"".join(received.pieces)
            received.pieces.clear()
            if self._is_frames:
                self._frames = self._decoder.feed(body)
            else:
                self._refusal += body[: REFUSAL_BYTES_AT_MOST - len(self._refusal)]

    def _on_head(self) -> None:
        self.status = self._parser.get_status_code()
        self.headers = self._received.headers()
        kind = self.headers.get(b"content-type", b"")
        self._is_frames = kind.partition(b";")[0].strip().lower() == _FRAMES_TYPE
        # The parser knows this only while it is in the middle of the message, so compute it here.
        wish = self.headers.get(b"connection", b"").lower()
        self._is_lasting = b"close" not in wish and self._parser.get_http_version() == "1.1"

    def next_frame(self) -> Frame | None:
        """Return the next frame if it has fully arrived. Skips heartbeats."""
        for frame in self._frames:
            if frame.kind != calls.HEARTBEAT:
                self.over = frame.kind in calls.FINAL
                return frame
        return None
