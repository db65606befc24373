"""What a TLS client says first, whole and changed."""

from __future__ import annotations

import ssl
import struct

import pytest


def hello(name: str | None) -> bytes:
    """What a TLS client says first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def with_extension(data: bytes, kind: int, body: bytes = b"") -> bytes:
    """A client hello with one more extension at its end."""
    added = struct.pack("!HH", kind, len(body)) + body
    message = bytearray(data[5:])
    at = 4 + 2 + 32
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    message[at : at + 2] = (int.from_bytes(message[at : at + 2], "big") + len(added)).to_bytes(2, "big")
    message += added
    message[1:4] = (len(message) - 4).to_bytes(3, "big")
    return data[:3] + len(message).to_bytes(2, "big") + bytes(message)
