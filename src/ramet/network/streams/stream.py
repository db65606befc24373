"""What is read and written, whatever lies below: a socket (``socket_stream``), or TLS over another stream."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable

PIECE_BYTES = 256 * 1024  # at most so much is read at once


class Stream:
    """Of a coroutine that asks for it: bytes, with backpressure both ways."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        # Called once, when the peer has said its last or is gone.
        self.when_gone: Callable[[], None] | None = None

    @property
    def ended(self) -> bool:
        """The peer will send no more, or is gone; what it has sent before may still be read."""
        raise NotImplementedError

    @property
    def unread_bytes(self) -> int:
        """How much is there that nobody has asked for."""
        raise NotImplementedError

    def _tell_gone(self) -> None:
        called, self.when_gone = self.when_gone, None
        if called is not None:
            called()

    async def read(self) -> bytes:
        """Whatever is there; b"" at the end. ConnectionError: it broke, or was cut."""
        raise NotImplementedError

    def unread(self, data: bytes) -> None:
        """The next read gives it first."""
        if data:
            self._pieces.appendleft(data)

    def write(self, data: bytes) -> None:
        """Never waits; ``drain`` does."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Until little is left to be sent. ConnectionError: there is nobody to send it to."""
        raise NotImplementedError

    def write_eof(self) -> None:
        """Nothing more will be written; the other direction stays open."""
        raise NotImplementedError

    def close(self) -> None:
        """End both directions, after what was written."""
        raise NotImplementedError

    def abort(self) -> None:
        """End at once; the peer sees a reset."""
        raise NotImplementedError

    async def end_tls(self, context: ssl.SSLContext) -> Stream:
        """The same connection behind TLS, of which this is the server's side; begins with bytes that were unread."""
        from ramet.network.streams.tls_stream import TlsStream

        return await TlsStream.begin(self, context, None)

    async def begin_tls(self, context: ssl.SSLContext, server_name: str) -> Stream:
        """The same connection behind TLS, of which this is the client's side. ssl.SSLError: not to be trusted."""
        from ramet.network.streams.tls_stream import TlsStream

        return await TlsStream.begin(self, context, server_name)
