"""HTTP messages without I/O: the bytes of a request, and an answer put together from whatever pieces it comes in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ramet.errors import ProtocolError
from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder
from ramet.transport.http.address import Address
from ramet.transport.http.routes import Route

FRAMES_TYPE = b"application/vnd.ramet.frames"

_READ_BYTES = 64 * 1024
_READ_BYTES_AT_MOST = 1024 * 1024
_HEAD_BYTES_AT_MOST = 64 * 1024
# Of a refusal: enough for any message, little enough for a server that sends for ever.
REFUSAL_BYTES_AT_MOST = 64 * 1024


def request_head(address: Address, route: Route) -> bytes:
    """What every request to a server begins with. All of it was checked for line breaks when it was read."""
    lines = [b"POST %s HTTP/1.1" % route.target, b"Host: %s" % address.authority.encode("ascii")]
    if address.key is not None:
        lines.append(b"Authorization: Bearer %s" % address.key.encode("ascii"))
    lines += [b"User-Agent: ramet", b"Content-Type: %s" % FRAMES_TYPE]
    return b"\r\n".join((*lines, route.authorization))


def chunk(data: bytes) -> bytes:
    """A piece of a request body whose length is not known ahead."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


_HEAD_COMPLETE, _COMPLETE = b"\0head complete", b"\0complete"  # beside the names of headers, which have no such bytes


class _Received:
    """What the parser tells. Knows nothing of the parser, so that both are gone as soon as nobody needs them.

    Its callbacks are functions of C. In one of Python a signal handler could run, and what it raises, as Ctrl-C does,
    the parser would turn into an error of its own.
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
        # Another message may have come before it, with a status below 200, which only announces this one.
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
        """By their names in small letters."""
        return {name.lower(): value for name, value in self._said.items()}


class Answer:
    """The answer to one request. After a ProtocolError it must not be fed again."""

    def __init__(self) -> None:
        self._frames: Iterator[Frame] = iter(())
        self._decoder = FrameDecoder(FROM_ENGINE)
        self._head_bytes = 0
        self._refusal = bytearray()
        self.begun = False  # at least one byte has come
        self.over = False  # the final frame was given out
        self.status = 0  # once the head is complete
        self.headers: dict[bytes, bytes] = {}  # too
        self._received = _Received()
        self._parser = HttpResponseParser(self._received)
        self._is_frames = False
        self._is_lasting = False

    @property
    def complete(self) -> bool:
        """All of it has come, down to the last byte."""
        return self._received.complete

    @property
    def refused(self) -> bool:
        """The head is there and does not announce frames."""
        return self.status != 0 and not self._is_frames

    @property
    def reusable(self) -> bool:
        """When it is complete, the connection may carry another."""
        return self.over and self._is_lasting

    @property
    def refusal(self) -> bytes:
        return bytes(self._refusal)

    @property
    def wanted_bytes(self) -> int:
        """A good size for the next read."""
        missing_bytes = self._decoder.missing_bytes if self._decoder.in_frame else 0
        return min(missing_bytes, _READ_BYTES_AT_MOST) if missing_bytes > _READ_BYTES else _READ_BYTES

    def feed(self, data: bytes) -> None:
        """Take in what was read; only when ``next_frame`` has nothing more to give."""
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
        self._is_frames = kind.partition(b";")[0].strip().lower() == FRAMES_TYPE
        # The parser itself knows this only while it is in the middle of the message.
        wish = self.headers.get(b"connection", b"").lower()
        self._is_lasting = b"close" not in wish and self._parser.get_http_version() == "1.1"

    def next_frame(self) -> Frame | None:
        """The next frame, if it has come completely. What only says that the server is alive is passed over."""
        for frame in self._frames:
            if frame.kind != calls.HEARTBEAT:
                self.over = frame.kind in calls.FINAL
                return frame
        return None
