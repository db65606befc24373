"""The interface of everything that is read and written: a socket (``socket_stream``), or TLS over another stream."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable

PIECE_BYTES = 256 * 1024  # the most that is read at once


class Stream:
    """Bytes for coroutines, with backpressure in both directions."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        # Called once, when the peer has shut down its sending side or is gone.
        self.when_gone: Callable[[], None] | None = None

    @property
    def ended(self) -> bool:
        """Whether the peer will send no more. What it has sent before may still be unread."""
        raise NotImplementedError

    @property
    def unread_bytes(self) -> int:
        """How many received bytes have not been read."""
        raise NotImplementedError

    def _tell_gone(self) -> None:
        # Cleared first: the callback may close the stream, which leads here again.
        called, self.when_gone = self.when_gone, None
        if called is not None:
            called()

    async def read(self) -> bytes:
        """Read what is there; b"" at the end. Raises ConnectionError if the connection broke or was aborted."""
        raise NotImplementedError

    def unread(self, data: bytes) -> None:
        """Put bytes back; the next read returns them first."""
        if data:
            self._pieces.appendleft(data)

    def write(self, data: bytes) -> None:
        """Write without waiting. ``drain`` waits."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Wait until little is left to be sent. Raises ConnectionError if the peer is gone."""
        raise NotImplementedError

    def write_eof(self) -> None:
        """Shut down our sending side. The other direction stays open."""
        raise NotImplementedError

    def close(self) -> None:
        """Close both directions, after sending what was written."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close at once. The peer sees a reset."""
        raise NotImplementedError

    async def end_tls(self, context: ssl.SSLContext) -> Stream:
        """Start TLS as the server, beginning with bytes that were put back. Raises as ``TlsStream.begin``."""
        from ramet.network.streams.tls_stream import TlsStream

        return await TlsStream.begin(self, context, None)

    async def begin_tls(self, context: ssl.SSLContext, server_name: str) -> Stream:
        """Start TLS as the client.

        Raises ssl.SSLError if the server cannot be trusted, otherwise as ``TlsStream.begin``.
        """
        from ramet.network.streams.tls_stream import TlsStream

        return await TlsStream.begin(self, context, server_name)
