"""Serves the programs of a sandbox that connect to the proxy: what each asks for, and how it is refused."""

from __future__ import annotations

import asyncio
import socket
import struct
from ipaddress import IPv4Address

from ramet.network.connecting.targets import TargetRefused, reach
from ramet.network.http.forwarding import forward
from ramet.network.http.refusals import refusal
from ramet.network.listeners import socks
from ramet.network.listeners.tunnels import AuthorityNow, tunnel
from ramet.network.peers import SandboxPeer
from ramet.network.streams.socket_stream import SocketStream

_FIRST_BYTE_SECONDS = 60.0
_LAST_SECONDS = 2.0
_LAST_BYTES = 1 << 20
# linux/netfilter_ipv4.h: the destination of a connection before a rule redirected it, as a struct sockaddr_in.
_SO_ORIGINAL_DST = 80
_SOCKADDR_IN = struct.Struct("!2xH4s8x")


async def serve_proxy_client(client: SocketStream, peer: SandboxPeer, authority: AuthorityNow) -> None:
    """Serve a program that knows that it talks to a proxy: SOCKS or HTTP, told apart by the first byte."""
    async with asyncio.timeout(_FIRST_BYTE_SECONDS):
        data = await client.read()
    if not data:
        return
    client.unread(data)
    if data[0] == socks.VERSION:
        await _serve_socks(client, peer, authority)
        return
    asked = await forward(client, peer, None, False)
    if asked is None:
        return
    try:
        target = await reach(peer, asked.host, asked.port, "connect")
    except TargetRefused as refused:
        return await _say_last(client, refusal(refused, asked.host, asked.port, b"CONNECT"))
    client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    await tunnel(client, peer, target, authority)


async def _serve_socks(client: SocketStream, peer: SandboxPeer, authority: AuthorityNow) -> None:
    try:
        wanted = await socks.hear_request(client)
    except socks.Unspeakable as error:
        peer.entries.tried("socks", "", 0, False, None, f"this request is not passed on: {error}")
        return
    try:
        target = await reach(peer, wanted.host, wanted.port, "socks")
    except TargetRefused as refused:
        return await _say_last(client, socks.refusal(refused))
    client.write(socks.answer(socks.GRANTED))
    await tunnel(client, peer, target, authority)


async def serve_raw_client(client: SocketStream, peer: SandboxPeer, authority: AuthorityNow) -> None:
    """Serve a program that the kernel redirected here and that knows of no proxy. A refusal is just a reset."""
    try:
        address, port = original_destination(client.socket)
    except OSError:  # a program has connected to this port itself, without being redirected
        return client.abort()
    try:
        target = await reach(peer, str(address), port, "tcp")
    except TargetRefused:
        return client.abort()
    await tunnel(client, peer, target, authority)


async def _say_last(client: SocketStream, answer: bytes) -> None:
    """Send an answer and read on for a moment before closing.

    close(2) with unread bytes, or bytes that arrive after it, cause a reset, and the client's kernel then drops the
    answer.
    """
    client.write(answer)
    client.write_eof()
    heard = 0
    async with asyncio.timeout(_LAST_SECONDS):
        while heard < _LAST_BYTES and (data := await client.read()):
            heard += len(data)


def original_destination(end: socket.socket) -> tuple[IPv4Address, int]:
    """Where a connection was going before it was redirected. Raises OSError if it was not."""
    port, packed = _SOCKADDR_IN.unpack(end.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, _SOCKADDR_IN.size))
    address = IPv4Address(packed)
    # A program that connects to the port directly gets the port's own address here.
    if address.is_loopback:
        raise OSError(f"{address} is this side's own")
    return address, port
