"""TLS without I/O, so that both drivers can use it."""

from __future__ import annotations

import ssl

from ramet.transport.http.steps import Steps

_READ_BYTES = 64 * 1024


class Tls:
    """The client's side of one TLS connection."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def handshake(self) -> Steps[None]:
        """Yield the steps of the handshake.

        Raise ssl.SSLError, after sending the alert that OpenSSL wrote for the server.
        """
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                if hello := self._outgoing.read():
                    yield hello
                received: bytes = yield _READ_BYTES
                if not received:
                    raise ConnectionResetError("the connection ended during the TLS handshake") from None
                self._incoming.write(received)
            except ssl.SSLError:
                if alert := self._outgoing.read():
                    yield alert
                raise
            else:
                if finished := self._outgoing.read():
                    yield finished
                return

    def encrypt(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes | None:
        """Return the decrypted data; None if no data is complete yet, `b""` at the end."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        said: list[bytes] = []
        try:
            while piece := self._object.read(_READ_BYTES):
                said.append(piece)
        except ssl.SSLWantReadError:
            return b"".join(said) if said else None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        return b"".join(said)
