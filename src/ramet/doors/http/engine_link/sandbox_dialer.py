"""Connections to servers in sandboxes: the worker may not connect, so the engine connects and hands them over.

worker ── DIAL ──▶ engine ── connect, in the sandbox's own network ──▶ 127.0.0.1:port
   ◀── ANSWER with a descriptor ──┘
"""

from __future__ import annotations

import array  # noqa: F401 - recv_fds imports it late
import asyncio
import os
import socket
from collections.abc import Mapping

from ramet.doors.http.engine_link.link import EngineConnections
from ramet.errors import EngineLost, ProtocolError, Unreachable
from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode
from ramet.transport.embedded_links import readable

_READ_BYTES = 64 * 1024
_DIAL_SECONDS = 15.0


async def dial(link: EngineConnections, header: Mapping[str, object]) -> socket.socket:
    """Connect to a port of a sandbox. Raises Unreachable if nothing listens there."""
    connection = await link.introduced()
    # A connection of its own: the transport of a pooled one would read the answer and drop the descriptor with it.
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            return await _ask(connection, encode(calls.DIAL, header))
    except TimeoutError:
        raise Unreachable("the sandbox does not answer", hint="try again in a moment") from None
    except OSError as error:
        raise EngineLost("the engine ended before it answered", hint="try again in a moment") from error
    finally:
        connection.close()


async def _ask(connection: socket.socket, request: bytes) -> socket.socket:
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    await loop.sock_sendall(connection, request)
    decoder, handed_over = FrameDecoder(FROM_ENGINE), list[int]()
    try:
        while True:
            await readable(loop, connection)
            try:
                data, descriptors, _, _ = socket.recv_fds(connection, _READ_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                continue
            handed_over += descriptors
            if not data:
                raise ConnectionResetError
            for frame in decoder.feed(data):
                return _connected(frame, handed_over)
    finally:
        for descriptor in handed_over:
            os.close(descriptor)


def _connected(frame: Frame, handed_over: list[int]) -> socket.socket:
    if frame.kind == calls.ERROR:
        raise calls.read_error(frame.header)
    if frame.kind != calls.ANSWER or len(handed_over) != 1:
        raise ProtocolError("the engine answered without a connection")
    connected = socket.socket(fileno=handed_over.pop())
    connected.setblocking(False)
    return connected
