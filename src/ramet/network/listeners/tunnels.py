"""A connection that a program asked for, once it is made: bytes both ways, after a look at the program's first ones.

    TLS       the server it names must be the one that was asked for; for a host with secrets we terminate TLS ourselves
    HTTP/1    goes to the forwarder, which checks each request
    HTTP/2    in the clear: refused, because nothing here reads its requests
    others    passed unchanged; not to a host with secrets, whose answers must be searched

The server's bytes reach the program meanwhile: in some protocols the server speaks first.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from ramet.network.connecting.targets import OutgoingConnection
from ramet.network.http.forwarding import forward
from ramet.network.listeners.client_hello import MalformedHello
from ramet.network.listeners.first_bytes import hear_hello, speech_of, why_not
from ramet.network.listeners.relay import relay
from ramet.network.peers import SandboxPeer
from ramet.network.secrets.certificates import Authority
from ramet.network.streams.socket_stream import SocketStream

# How long to wait for the rest of a line before its beginning is passed on.
_REST_OF_LINE_SECONDS = 0.05

AuthorityNow = Callable[[], Authority | None]


async def tunnel(client: SocketStream, peer: SandboxPeer, target: OutgoingConnection, authority: AuthorityNow) -> None:
    """Serve a tunnel until it is over. Closes the target; the client is closed or reset."""
    try:
        # Set before the first await: a rule may cut the target while the client is silent.
        target.on_over = lambda: _end_with(client, target)
        target.plain.pour_into(client)
        await _begin(client, peer, target, authority)
    except ConnectionError:
        client.abort()
    finally:
        target.close()


def _end_with(client: SocketStream, target: OutgoingConnection) -> None:
    if target.reason is not None or target.plain.broken:
        client.abort()


async def _begin(client: SocketStream, peer: SandboxPeer, target: OutgoingConnection, authority: AuthorityNow) -> None:
    data = await client.read()
    # After the await, because rules and secrets may have changed while we waited for the first bytes.
    secret = bool(peer.secrets_for(target.host, target.port))
    if not data:
        return await _relay(client, target)
    match speech_of(data):
        case "tls":
            await _speak_tls(client, peer, target, data, authority)
        case "http":
            await _speak_http(client, peer, target, data)
        case "http2":
            target.refuse("HTTP/2 without TLS does not pass: no rule could be held to its requests")
        case "unclear" if not secret:
            await _see_more(client, peer, target, data)
        case "unclear":
            # The forwarder waits for the rest of a request, and refuses what does not become one.
            await _speak_http(client, peer, target, data)
        case "other" if secret:
            target.refuse("neither HTTP nor TLS: what a host with secrets answers must be looked into")
        case "other":
            target.plain.write(data)
            await _relay(client, target)


async def _speak_tls(
    client: SocketStream, peer: SandboxPeer, target: OutgoingConnection, data: bytes, authority: AuthorityNow
) -> None:
    try:
        hello, data = await hear_hello(client, data)
    except MalformedHello as error:
        return target.refuse(f"TLS cannot be read: {error}")
    why = why_not(hello, target.host, target.port, peer)
    if why is not None:
        return target.refuse(why)
    if not peer.secrets_for(target.host, target.port):
        target.plain.write(data)
        return await _relay(client, target)
    # Asked for now, and not when the tunnel began: the engine may have sent it since.
    own = authority()
    if own is None:
        return target.refuse("the proxy has no certificates yet for hosts with secrets")
    if not _hand_over(client, target, data):
        return
    try:
        ended = await client.end_tls(own.context_for(target.host))
    except (ssl.SSLError, TimeoutError):
        return target.refuse("the program did not agree to TLS with the proxy, whose certificates it has to trust")
    await forward(ended, peer, (target.host, target.port), True, target)


async def _speak_http(client: SocketStream, peer: SandboxPeer, target: OutgoingConnection, data: bytes) -> None:
    if _hand_over(client, target, data):
        await forward(client, peer, (target.host, target.port), False, target)


def _hand_over(client: SocketStream, target: OutgoingConnection, data: bytes) -> bool:
    """Prepare both sides for the forwarder. Returns False if the server has already spoken, after refusing it."""
    # Bytes of the server that have passed could not be masked any more, nor matched to a request.
    if target.entry.received:
        target.refuse("the server spoke first, and the program answered with HTTP or TLS")
        return False
    # From here on the forwarder reads the server's bytes, and reports its end.
    target.plain.stop_pouring()
    target.on_over = None
    client.unread(data)
    return True


async def _see_more(client: SocketStream, peer: SandboxPeer, target: OutgoingConnection, line: bytes) -> None:
    """Handle the beginning of a line that may become a request.

    It is passed on after a moment, but never together with the rest of a request: a server acts only on a whole one.
    """
    held = line
    while True:
        try:
            # With nothing held there is nothing to pass on after a while, so wait without a limit.
            async with asyncio.timeout(_REST_OF_LINE_SECONDS if held else None):
                data = await client.read()
        except TimeoutError:
            target.plain.write(held)
            await target.plain.drain()
            held = b""
            continue
        line += data
        held += data
        speech = speech_of(line) if data else "other"
        if speech == "http" and held == line:
            return await _speak_http(client, peer, target, held)
        if speech in ("http", "http2"):
            return target.cut("HTTP that came in small pieces, or is HTTP/2 without TLS")
        if speech != "unclear":
            target.plain.write(held)
            if not data:
                target.plain.write_eof()
            return await _relay(client, target)


async def _relay(client: SocketStream, target: OutgoingConnection) -> None:
    await relay(client, target.plain, lambda: target.entry.sent)
