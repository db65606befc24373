"""A connection to a server in a sandbox, with bounded buffers in both directions.

Unlike asyncio's streams it delivers everything that came before a reset: servers that answer before they have read the
whole request end in one.
"""

from __future__ import annotations

import asyncio
import socket

_HIGH_BYTES = 256 * 1024
_LOW_BYTES = 64 * 1024


class SandboxStream(asyncio.Protocol):
    """Owns its socket. ``open`` makes one."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._paused = False
        self._over = False
        self.broken = False  # it ended in another way than by being closed

    @classmethod
    async def open(cls, connected: socket.socket) -> SandboxStream:
        try:
            _, stream = await asyncio.get_running_loop().create_connection(cls, sock=connected)
        except BaseException:
            connected.close()
            raise
        return stream

    async def read(self) -> bytes:
        """Return what has come; waits if there is nothing. Empty: nothing more will come."""
        while not self._received and not self._over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = bytes(self._received)
        self._received.clear()
        if self._paused and not self._over:
            self._paused = False
            self._transport.resume_reading()
        return data

    def write(self, data: bytes) -> None:
        if not self._over:
            self._transport.write(data)

    @property
    def full(self) -> bool:
        return self._room is not None

    async def drain(self) -> None:
        """Wait until there is room for more, or the connection is gone."""
        if self._room is not None:
            await asyncio.shield(self._room)

    def abort(self) -> None:
        self._transport.abort()

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        transport.set_write_buffer_limits(_HIGH_BYTES, _LOW_BYTES)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > _HIGH_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._over = True
        self._wake()
        return True  # keep the transport open: the server may still read what is being written

    def connection_lost(self, error: Exception | None) -> None:
        self.broken = self.broken or (error is not None and not self._over)
        self._over = True
        self.resume_writing()
        self._wake()

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._room is not None:
            if not self._room.done():
                self._room.set_result(None)
            self._room = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
