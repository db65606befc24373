"""TLS on top of a stream. Unlike the loop's own TLS it can start when the first bytes were already read."""

from __future__ import annotations

import asyncio
import ssl

from ramet.network.streams.stream import PIECE_BYTES, Stream

_HANDSHAKE_SECONDS = 30.0


class TlsStream(Stream):
    """Reads and writes plain bytes; owns the stream below.

    Closing sends close_notify, but does not wait for the peer's.
    """

    def __init__(self, below: Stream, context: ssl.SSLContext, server_name: str | None) -> None:
        super().__init__()
        self._below = below
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        server_side = server_name is None
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side, server_name)
        self._ended = False
        # The end of the connection below is the end of this stream, too.
        below.when_gone = self._tell_gone

    @classmethod
    async def begin(cls, below: Stream, context: ssl.SSLContext, server_name: str | None) -> TlsStream:
        """Do the handshake. Raises ssl.SSLError, ConnectionError or TimeoutError."""
        stream = cls(below, context, server_name)
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            await stream._shake_hands()
        return stream

    @property
    def ended(self) -> bool:
        return self._ended or self._below.ended

    @property
    def unread_bytes(self) -> int:
        """Bytes that came and were not read. Some of them may be TLS's own messages: nothing is decrypted ahead."""
        return sum(map(len, self._pieces)) + self._tls.pending() + self._below.unread_bytes

    async def read(self) -> bytes:
        if self._pieces:
            return self._pieces.popleft()
        while not self._ended:
            try:
                data = self._tls.read(PIECE_BYTES)
            except ssl.SSLWantReadError:
                # Reading may have produced something to send: a key update, or an alert.
                self._flush()
                await self._fill()
                continue
            # Some servers close without close_notify. HTTP's framing detects a truncated body that has a length.
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                data = b""
            except ssl.SSLError as error:
                self._below.abort()
                raise ConnectionAbortedError(f"TLS broke: {error.reason}") from error
            if data:
                return data
            self._ended = True
        return b""

    def write(self, data: bytes) -> None:
        if data and not self._ended:
            try:
                self._tls.write(data)
            except ssl.SSLError:  # the peer has sent close_notify
                return
            self._flush()

    async def drain(self) -> None:
        await self._below.drain()

    def write_eof(self) -> None:
        self._say_goodbye()
        self._below.write_eof()

    def close(self) -> None:
        self._say_goodbye()
        self._below.close()

    def abort(self) -> None:
        self._below.abort()

    async def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                self._flush()
                return
            except ssl.SSLWantReadError:
                self._flush()
                await self._fill()
                if self._incoming.eof:
                    raise ConnectionResetError("the connection ended before TLS was agreed on") from None
            except ssl.SSLError:
                self._flush()  # send the alert that tells the peer the reason
                raise

    async def _fill(self) -> None:
        data = await self._below.read()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def _say_goodbye(self) -> None:
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):  # it waits for the peer's close_notify, which we do not
            pass
        self._flush()
