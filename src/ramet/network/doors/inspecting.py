"""The first bytes that a program sends through a tunnel: what it is about to speak, and whether that may pass."""

from __future__ import annotations

import asyncio
import re
from typing import Literal

from ramet.network.doors.hello import Hello, HelloReader, NotUnderstood
from ramet.network.guests import Guest
from ramet.network.streams.stream import Stream
from ramet.protocol.rules import host_address, host_name

Speech = Literal["tls", "http", "http2", "other", "unclear"]

# A request line that is longer is taken by no server.
LINE_BYTES_AT_MOST = 64 * 1024
_HELLO_SECONDS = 30.0
# What may still become the first line of a request: a word, and after a space anything that prints.
_BEGINNING = re.compile(rb"[!-~]+(?:[ \t][\t -~\x80-\xff]*)?\r?")
_REQUEST = re.compile(rb"[A-Za-z-]{1,24}[ \t]")
_ALERT, _HANDSHAKE = b"\x15", b"\x16"
_OF_A_WARNING = b"\x00\x02\x01"  # length and level


def speech_of(data: bytes) -> Speech:
    """What somebody speaks who began like this. Unclear: HTTP may come of it."""
    if data[:1] == _HANDSHAKE:
        return "tls"
    # Refused there. Some servers, as those in Go, drop warnings that come before the hello, whatever version they tell,
    # and could then be told any name behind one.
    if data[:1] == _ALERT and _OF_A_WARNING.startswith(data[3:6]):
        return "tls"
    if data[0:1] and data[0] & 0x80 and data[2:4] == b"\x01\x03":
        return "tls"  # as clients of SSL 2 say hello; it is refused there
    line, line_end, _ = data.lstrip(b"\r\n\t ").partition(b"\n")
    if b"HTTP/" in line.upper():
        return "http2" if line.startswith(b"PRI ") else "http"
    if not line_end and len(data) > LINE_BYTES_AT_MOST and _REQUEST.match(line):
        return "http"  # with a request line that is refused there
    if line_end or len(data) > LINE_BYTES_AT_MOST:
        return "other"
    return "unclear" if not line or _BEGINNING.fullmatch(line) else "other"


async def hear_hello(client: Stream, data: bytes) -> tuple[Hello, bytes]:
    """The whole first message of TLS, and all that was read for it. NotUnderstood: it is none, or comes too slowly."""
    try:
        async with asyncio.timeout(_HELLO_SECONDS):
            reader = HelloReader()
            while (hello := reader.feed(data)) is None:
                data = await client.read()
                if not data:
                    raise NotUnderstood("the first message of TLS is cut short")
            return hello, reader.data
    except TimeoutError:
        raise NotUnderstood("the first message of TLS did not come to its end") from None


def why_not(hello: Hello, host: str, port: int, guest: Guest) -> str | None:
    """What is wrong with speaking TLS like this to a host that was asked for and allowed. None: nothing."""
    network, decider = guest.network, guest.decider
    if hello.encrypted_hello and (not network.open or any(rule.name is not None for rule in network.deny)):
        return "TLS hides the name of its server (encrypted client hello), so no rule can be held to it"
    name = host_name(hello.server_name) if hello.server_name is not None else None
    if host_address(host) is None:
        if hello.server_name is None:
            return f"TLS names no server, but the connection is to {host}"
        if name != host:
            return f"TLS names the server {hello.server_name!r:.260}, but the connection is to {host}"
    elif name is not None:
        if guest.secrets_for(name, port):
            return f"TLS names {name}, which has secrets; connect to it by its name, not by an address"
        verdict = decider.name_verdict(name, port)
        # Whoever may reach an address may call it what they like, except by a name that is denied.
        if not verdict.allowed and verdict.rule is not None:
            return verdict.reason
    return None
