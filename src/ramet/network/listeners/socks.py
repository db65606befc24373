"""SOCKS version 5 (RFC 1928) without authentication: a program asks for one connection, then talks through it.

greeting:  5, count, methods...                     answer: 5, method (0: none; 255: not acceptable)
request:   5, command (1: connect), 0, form of address, address, port (2)
answer:    5, code, 0, 1, address (4), port (2)     the address is always zero: programs do not learn it
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import NoReturn

from ramet.network.connecting.targets import TargetRefused
from ramet.network.streams.stream import Stream
from ramet.protocol.lazy_dataclasses import dataclass

VERSION = 5
_NO_AUTHENTICATION, _NO_METHOD = 0, 255
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_SECONDS = 30.0

GRANTED, FAILED, NOT_ALLOWED, _, UNREACHABLE, REFUSED, _, UNKNOWN_COMMAND, UNKNOWN_FORM = range(9)
_CODES = {"rule": NOT_ALLOWED, "bytes": NOT_ALLOWED, "limit": FAILED, "unresolved": UNREACHABLE, "unreachable": REFUSED}


class Unspeakable(Exception):
    """The request cannot be granted, and has been answered."""


@dataclass(frozen=True, slots=True)
class SocksTarget:
    """The host and port that a program asks for."""

    host: str
    port: int


async def hear_request(client: Stream) -> SocksTarget:
    """Read a request. Raises Unspeakable for anything that cannot be granted, TimeoutError, ConnectionError."""
    async with asyncio.timeout(_SECONDS):
        reader = _SocksReader(client)
        version, count = await reader.take(2)
        methods = await reader.take(count)
        if version != VERSION or _NO_AUTHENTICATION not in methods:
            client.write(bytes((VERSION, _NO_METHOD)))
            raise Unspeakable("no method of authentication that is known")
        client.write(bytes((VERSION, _NO_AUTHENTICATION)))
        version, command, zero, form = await reader.take(4)
        if version != VERSION or zero != 0:
            _fail(client, FAILED)
        if form == _NAME:
            (length,) = await reader.take(1)
            host = (await reader.take(length)).decode("latin-1")
        elif form in (_IPV4, _IPV6):
            host = str(ipaddress.ip_address(await reader.take(4 if form == _IPV4 else 16)))
        else:
            _fail(client, UNKNOWN_FORM)
        port = int.from_bytes(await reader.take(2), "big")
        if command != _CONNECT:
            _fail(client, UNKNOWN_COMMAND)
        reader.leave()
    return SocksTarget(host, port)


def answer(code: int) -> bytes:
    return bytes((VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0))


def refusal(refused: TargetRefused) -> bytes:
    return answer(_CODES[refused.status])


def _fail(client: Stream, code: int) -> NoReturn:
    client.write(answer(code))
    raise Unspeakable(f"answered with code {code}")


class _SocksReader:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._data = b""

    async def take(self, count: int) -> bytes:
        while len(self._data) < count:
            more = await self._stream.read()
            if not more:
                raise ConnectionResetError("it ended in the middle of a request")
            self._data += more
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def leave(self) -> None:
        """Put back what came after the request, for the next reader."""
        self._stream.unread(self._data)
