"""Looks at the first bytes that a program sends through a tunnel: which protocol it is, and whether it may pass."""

from __future__ import annotations

import asyncio
import re
from typing import Literal

from ramet.network.listeners.client_hello import Hello, HelloReader, MalformedHello
from ramet.network.peers import SandboxPeer
from ramet.network.streams.stream import Stream
from ramet.protocol.network.rules import host_address, host_name

Speech = Literal["tls", "http", "http2", "other", "unclear"]

# No server accepts a longer request line.
LINE_BYTES_AT_MOST = 64 * 1024
_HELLO_SECONDS = 30.0
# Bytes that may still become a request line: a word, and after a blank anything printable.
_BEGINNING = re.compile(rb"[!-~]+(?:[ \t][\t -~\x80-\xff]*)?\r?")
_REQUEST = re.compile(rb"[A-Za-z-]{1,24}[ \t]")
_ALERT, _HANDSHAKE = b"\x15", b"\x16"
_OF_A_WARNING = b"\x00\x02\x01"  # length and level


def speech_of(data: bytes) -> Speech:
    """The protocol that begins with these bytes. "unclear": it may still become HTTP."""
    if data[:1] == _HANDSHAKE:
        return "tls"
    # Treated as TLS, and refused there. Some servers, such as Go's, ignore warnings before the hello, whatever version
    # they have. A program could otherwise hide a hello with any name behind one.
    if data[:1] == _ALERT and _OF_A_WARNING.startswith(data[3:6]):
        return "tls"
    if data[0:1] and data[0] & 0x80 and data[2:4] == b"\x01\x03":
        return "tls"  # the hello of SSL 2; refused there
    line, line_end, _ = data.lstrip(b"\r\n\t ").partition(b"\n")
    if b"HTTP/" in line.upper():
        return "http2" if line.startswith(b"PRI ") else "http"
    if not line_end and len(data) > LINE_BYTES_AT_MOST and _REQUEST.match(line):
        return "http"  # refused there for its request line
    if line_end or len(data) > LINE_BYTES_AT_MOST:
        return "other"
    return "unclear" if not line or _BEGINNING.fullmatch(line) else "other"


async def hear_hello(client: Stream, data: bytes) -> tuple[Hello, bytes]:
    """Read a whole client hello. Returns it with all bytes read for it.

    Raises MalformedHello, also if it comes too slowly.
    """
    try:
        async with asyncio.timeout(_HELLO_SECONDS):
            reader = HelloReader()
            while (hello := reader.feed(data)) is None:
                data = await client.read()
                if not data:
                    raise MalformedHello("the first message of TLS is cut short")
            return hello, reader.data
    except TimeoutError:
        raise MalformedHello("the first message of TLS did not come to its end") from None


def why_not(hello: Hello, host: str, port: int, peer: SandboxPeer) -> str | None:
    """Why TLS with this hello may not pass to a host that was asked for and allowed. None: it may."""
    network, decider = peer.network, peer.decider
    if hello.encrypted_hello and (not network.open or any(rule.name is not None for rule in network.deny)):
        return "TLS hides the name of its server (encrypted client hello), so no rule can be held to it"
    name = host_name(hello.server_name) if hello.server_name is not None else None
    if host_address(host) is None:
        if hello.server_name is None:
            return f"TLS names no server, but the connection is to {host}"
        if name != host:
            return f"TLS names the server {hello.server_name!r:.260}, but the connection is to {host}"
    elif name is not None:
        if peer.secrets_for(name, port):
            return f"TLS names {name}, which has secrets; connect to it by its name, not by an address"
        verdict = decider.name_verdict(name, port)
        # A program that may reach an address may use any name for it, except one that is denied.
        if not verdict.allowed and verdict.rule is not None:
            return verdict.reason
    return None
