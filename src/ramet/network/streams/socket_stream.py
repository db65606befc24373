"""One connected socket: coroutines that read and write, with backpressure both ways, or a straight line to another one.

    peer ── bytes ──▶ get_buffer, buffer_updated ──▶ pieces ──▶ read()            a coroutine asks
                                                 └─▶ another stream's write()     ``pour_into``: nobody has to be woken

All streams read into one buffer, which is copied from before the loop goes on. How much is read at once is up to the
sandbox that the stream belongs to (``Share``), so that what a slow reader leaves with us is bounded.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Protocol, cast

from ramet.network.streams.pouring import Pour
from ramet.network.streams.stream import PIECE_BYTES, Stream

_WRITE_BYTES = 64 * 1024
# A peer that does not take what was written to it before a close is not waited for any longer.
_LINGER_SECONDS = 30.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

_buffer = memoryview(bytearray(PIECE_BYTES))


class Share(Protocol):
    """What a stream may take of the proxy."""

    piece_bytes: int  # at most so much is read at once


class Meter(Protocol):
    """Counts what goes over a stream. Each call gives the seconds to wait until more may go."""

    def received(self, count: int) -> float: ...
    def sent(self, count: int) -> float: ...


class SocketStream(Stream, asyncio.BufferedProtocol):
    """A stream over a transport of the loop, which is told of it as its protocol."""

    def __init__(self, share: Share, opened: Callable[[SocketStream], None] | None = None) -> None:
        super().__init__()
        self.meter: Meter | None = None
        self.on_lost: Callable[[], None] | None = None  # called once, when the connection is gone
        self._share = share
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unread_bytes = 0
        self._ended = False  # the peer will send no more
        self._lost: ConnectionError | None = None
        self._closing = False
        self._eof_written = False
        self._reading = True
        self._read_held = False  # by the meter
        self._write_full = False
        self._write_held = False
        self._reader: asyncio.Future[None] | None = None
        self._drainer: asyncio.Future[None] | None = None
        self._pour: Pour | None = None  # to another stream
        self._poured_into: Pour | None = None  # from another one
        self._pour_left = 0
        self._was_bulk = False

    def __repr__(self) -> str:
        state = "lost" if self._lost else "closing" if self._closing else "ended" if self._ended else "open"
        return f"<SocketStream {state}, {self._unread_bytes} bytes unread>"

    @property
    def socket(self) -> socket.socket:
        assert self._transport is not None
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    @property
    def unread_bytes(self) -> int:
        return self._unread_bytes

    @property
    def ended(self) -> bool:
        return self._ended or self._lost is not None

    @property
    def lost(self) -> bool:
        return self._lost is not None

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Told when all has been taken, not before: that is when a splice can begin.
        self._transport.set_write_buffer_limits(_WRITE_BYTES, 0)
        if self._opened is not None:
            self._opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        size = self._share.piece_bytes
        if self._pour is not None and self._pour.left is not None:
            size = min(size, self._pour.left)
        return _buffer[:size]

    def buffer_updated(self, nbytes: int) -> None:
        if self.meter is not None:
            wait = self.meter.received(nbytes)
            if self._lost is not None:  # the meter has cut it
                return
            if wait > 0:
                self._read_held = True
                self._loop.call_later(wait, self._release_reading)
        data = bytes(_buffer[:nbytes])
        if self._pour is not None:
            self._pour.pass_on(data)
            if self._pour.left == 0:
                self.stop_pouring()
        else:
            self._pieces.append(data)
            self._unread_bytes += nbytes
            if self._reader is not None:
                _wake(self._reader)
        self.steer_reading()

    def eof_received(self) -> bool:
        self._ended = True
        if self._reader is not None:
            _wake(self._reader)
        if self._pour is not None:
            self._pour.end()
        self._tell_gone()
        return True  # what we have to say may still go out

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost is None:
            reset = exc is not None or not self._ended
            self._lost = ConnectionResetError("the connection was reset") if reset else _over()
        if exc is not None:
            self._ended = False
        self._transport = None
        self._end_splices()
        for waiter in (self._reader, self._drainer):
            if waiter is not None:
                _wake(waiter)
        for pour in (self._pour, self._poured_into):
            if pour is not None:
                pour.finish()
        self._tell_gone()
        called, self.on_lost = self.on_lost, None
        if called is not None:
            called()

    def pause_writing(self) -> None:
        self._write_full = True

    def resume_writing(self) -> None:
        self._write_full = False
        self._writable_again()

    # What coroutines call

    async def read(self) -> bytes:
        while not self._pieces:
            if self._ended:
                return b""
            if self._lost is not None:
                raise self._lost
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = self._pieces.popleft()
        self._unread_bytes -= len(data)
        self.steer_reading()
        return data

    def unread(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        super().unread(data)

    def write(self, data: bytes) -> None:
        if self._transport is None or self._closing or self._eof_written:
            return
        if self.meter is not None:
            wait = self.meter.sent(len(data))
            if self._lost is not None:
                return
            if wait > 0:
                self._write_held = True
                self._loop.call_later(wait, self._release_writing)
        self._transport.write(data)

    async def drain(self) -> None:
        while (self._write_full or self._write_held) and self._lost is None:
            self._drainer = self._loop.create_future()
            try:
                await self._drainer
            finally:
                self._drainer = None
        if self._lost is not None:
            raise self._lost

    def write_eof(self) -> None:
        if self._transport is not None and not self._closing and not self._eof_written:
            self._eof_written = True
            try:
                self._transport.write_eof()
            except OSError:  # the peer has gone; connection_lost will tell
                pass

    def close(self) -> None:
        if self._transport is None or self._closing:
            return
        self._closing = True
        if self._transport.get_write_buffer_size():
            self._loop.call_later(_LINGER_SECONDS, self.abort)
        self._end_splices()
        self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._end_splices()  # first: a connection is not over as long as there is a descriptor of it
        if self._lost is None:
            self._lost = ConnectionAbortedError("the connection was cut")
            self._ended = False
            self._pieces.clear()
            self._unread_bytes = 0
        if self._transport is not None:
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            except OSError:  # closed already
                pass
            self._transport.abort()
        for waiter in (self._reader, self._drainer):
            if waiter is not None:
                _wake(waiter)

    def pour_into(self, sink: SocketStream, count: int | None = None) -> asyncio.Future[None]:
        """From now on all that comes goes there by itself. Done when no more will come or can go.

        With a ``count`` (not 0) it ends after so many bytes, and whoever reads gets what is behind them; without, the
        end goes there, too. ``stop_pouring`` ends it earlier.
        """
        if self._pour is not None:
            if self._pour.sink is sink and self._pour.left is None and count is None:
                return self._pour.done
            self.stop_pouring()
        pour = self._pour = sink._poured_into = Pour(self, sink, count, self._was_bulk)
        while self._pieces and self._pour is not None:
            data = self._pieces.popleft()
            rest = pour.pass_on(data)
            self._unread_bytes -= len(data) - len(rest)
            if rest:
                self._pieces.appendleft(rest)
            if pour.left == 0:
                self.stop_pouring()
        if self._pour is not None:
            if self._ended:
                pour.end()
            elif self._lost is not None or sink._lost is not None:
                pour.finish()
        self.steer_reading()
        return pour.done

    def stop_pouring(self) -> None:
        """What comes from now on is for ``read`` again. Those who wait for the end of pouring are woken."""
        pour, self._pour = self._pour, None
        if pour is not None:
            pour.stop_splice()
            pour.sink._poured_into = None
            self._pour_left, self._was_bulk = pour.left or 0, pour.bulk
            pour.finish()
            self.steer_reading()

    @property
    def pour_left(self) -> int:
        """How much of a count did not go."""
        return self._pour.left or 0 if self._pour is not None else self._pour_left

    @property
    def broken(self) -> bool:
        """It did not come to its end by itself."""
        return self._lost is not None and not self._ended

    @property
    def full(self) -> bool:
        """Nothing should be written now."""
        return self._write_full or self._write_held

    @property
    def idle(self) -> bool:
        """All that was written has gone, and more may go."""
        return (
            self._transport is not None
            and not (self._closing or self._eof_written or self.full)
            and not self._transport.get_write_buffer_size()
        )

    def write_uncounted(self, data: bytes) -> None:
        """What has been counted already."""
        if self._transport is not None and not self._closing and not self._eof_written:
            self._transport.write(data)

    def break_off(self) -> None:
        """What the transport does when it meets an error, for one that somebody else was told."""
        if self._lost is None:
            self._lost = ConnectionResetError("the connection was reset")
        self._ended = False
        self.abort()

    def steer_reading(self) -> None:
        """Read on exactly as long as there is somewhere to go with it."""
        if self._transport is None or self._ended or self._closing:
            return
        pour = self._pour
        if pour is not None:
            wanted = not pour.sink.full and not self._read_held
            if wanted:
                pour.splice()
                wanted = not pour.splicing
        else:
            wanted = self._unread_bytes < self._share.piece_bytes and not self._read_held
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _end_splices(self) -> None:
        for pour in (self._pour, self._poured_into):
            if pour is not None:
                pour.stop_splice()

    def _release_reading(self) -> None:
        self._read_held = False
        self.steer_reading()

    def _release_writing(self) -> None:
        self._write_held = False
        self._writable_again()

    def _writable_again(self) -> None:
        if self._write_full or self._write_held:
            return
        if self._drainer is not None:
            _wake(self._drainer)
        if self._poured_into is not None:
            self._poured_into.source.steer_reading()


def _over() -> ConnectionError:
    return ConnectionError("the connection has ended")


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
