"""One connected socket: coroutines read and write it with backpressure, or it is connected directly to another one.

    peer ── bytes ──▶ get_buffer, buffer_updated ──▶ pieces ──▶ read()            a coroutine reads
                                                 └─▶ another stream's write()     ``pour_into``: no coroutine to wake

All streams read into one buffer, from which the bytes are copied before the loop continues. The sandbox that a stream
belongs to decides how much is read at once (``Share``), which bounds what a slow reader can leave in our memory.
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
# After a close, wait this long for a peer to take what was written before.
_LINGER_SECONDS = 30.0
# struct linger {on, 0 seconds}: close(2) then sends a reset instead of an orderly end.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

# Shared by all streams: the loop calls get_buffer, reads, and calls buffer_updated without running anything in between.
_buffer = memoryview(bytearray(PIECE_BYTES))


class Share(Protocol):
    """How much of the proxy's memory a stream may use."""

    piece_bytes: int  # the most that is read at once


class StreamMeter(Protocol):
    """Counts the bytes of a stream. Each call returns the seconds to wait until more may flow."""

    def received(self, count: int) -> float: ...
    def sent(self, count: int) -> float: ...


class SocketStream(Stream, asyncio.BufferedProtocol):
    """A stream over one of the loop's transports, as whose protocol it is registered."""

    def __init__(self, share: Share, opened: Callable[[SocketStream], None] | None = None) -> None:
        super().__init__()
        self.meter: StreamMeter | None = None
        self.on_lost: Callable[[], None] | None = None  # called once, when the transport has closed the socket
        self._share = share
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        # Everything below runs in the event loop's thread, so flags need no lock; but any of them may change at an
        # await.
        self._unread_bytes = 0
        self._ended = False  # the peer has shut down its sending side
        self._lost: ConnectionError | None = None
        self._closing = False
        # A transport raises on writes after write_eof; late data from a pour is dropped instead.
        self._eof_written = False
        self._reading = True  # whether the transport reads now
        self._read_held = False  # the meter has asked to wait
        self._write_full = False  # between the transport's pause_writing and resume_writing
        self._write_held = False  # the meter has asked to wait
        # One future each: a stream has one coroutine that reads and one that drains at a time.
        self._reader: asyncio.Future[None] | None = None
        self._drainer: asyncio.Future[None] | None = None
        self._pour: Pour | None = None  # this stream is poured into another
        self._poured_into: Pour | None = None  # another stream is poured into this one
        self._pour_left = 0  # the rest of the last pour, for `pour_left`
        self._was_bulk = False

    def __repr__(self) -> str:
        state = "lost" if self._lost else "closing" if self._closing else "ended" if self._ended else "open"
        return f"<SocketStream {state}, {self._unread_bytes} bytes unread>"

    @property
    def socket(self) -> socket.socket:
        """The transport's socket. Only for options and descriptors: the transport does all reading and writing."""
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

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # A low-water mark of 0: resume_writing is called when the buffer is empty, which is when a splice can begin.
        self._transport.set_write_buffer_limits(_WRITE_BYTES, 0)
        if self._opened is not None:
            self._opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        size = self._share.piece_bytes
        # Never read past a counted pour: the bytes behind it are for `read`.
        if self._pour is not None and self._pour.left is not None:
            size = min(size, self._pour.left)
        return _buffer[:size]

    def buffer_updated(self, nbytes: int) -> None:
        if self.meter is not None:
            wait = self.meter.received(nbytes)
            if self._lost is not None:  # the meter aborted the stream: its quota is used up
                return
            if wait > 0:
                self._read_held = True
                self._loop.call_later(wait, self._release_reading)
        # Copy now: the next stream reads into the same buffer.
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
        return True  # True keeps the transport open: our side may still send

    def connection_lost(self, exc: Exception | None) -> None:
        # `abort` and `break_off` have set a reason already. Without one, an end that came before the peer's is a reset.
        if self._lost is None:
            reset = exc is not None or not self._ended
            self._lost = ConnectionResetError("the connection was reset") if reset else _over()
        # After an error the end is not a proper one, whatever the peer had sent before.
        if exc is not None:
            self._ended = False
        self._transport = None
        # A splice has duplicates of the socket, so the peer would not see the end while one is running.
        self._end_splices()
        for waiter in (self._reader, self._drainer):
            if waiter is not None:
                _wake(waiter)
        for pour in (self._pour, self._poured_into):
            if pour is not None:
                pour.finish()
        self._tell_gone()
        # Cleared first, so that it is called once even if it closes this stream again.
        called, self.on_lost = self.on_lost, None
        if called is not None:
            called()

    def pause_writing(self) -> None:
        self._write_full = True

    def resume_writing(self) -> None:
        self._write_full = False
        self._writable_again()

    # Called by coroutines

    async def read(self) -> bytes:
        # A loop, because a wakeup may also mean that a pour took the bytes, or that the connection ended.
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
        # There is room again, if the reader's backlog had stopped the transport.
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
            if self._lost is not None:  # the meter aborted the stream
                return
            if wait > 0:
                self._write_held = True
                self._loop.call_later(wait, self._release_writing)
        self._transport.write(data)

    async def drain(self) -> None:
        # Checked again after each wakeup: the meter may hold writing while the transport resumes, and the other way
        # round.
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
            except OSError:  # the peer is gone; connection_lost follows
                pass

    def close(self) -> None:
        if self._transport is None or self._closing:
            return
        self._closing = True
        # A peer that does not read would otherwise keep the descriptor, and its slot in the limits, for ever.
        if self._transport.get_write_buffer_size():
            self._loop.call_later(_LINGER_SECONDS, self.abort)
        self._end_splices()
        self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._end_splices()  # first: the kernel ends a connection only when the last descriptor of it is closed
        # Set here, because connection_lost comes in a later turn of the loop and a reader could see a proper end
        # meanwhile.
        if self._lost is None:
            self._lost = ConnectionAbortedError("the connection was cut")
            self._ended = False
            self._pieces.clear()
            self._unread_bytes = 0
        if self._transport is not None:
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            except OSError:  # already closed
                pass
            self._transport.abort()
        for waiter in (self._reader, self._drainer):
            if waiter is not None:
                _wake(waiter)

    def pour_into(self, sink: SocketStream, count: int | None = None) -> asyncio.Future[None]:
        """Send everything that arrives from now on to ``sink``. Resolves when no more will arrive or can be sent.

        With a ``count`` (not 0) it ends after that many bytes, and ``read`` gets what follows. Without a count the end
        is passed on too. ``stop_pouring`` ends it earlier.
        """
        if self._pour is not None:
            # Asked for again, as when a tunnel becomes a relay: keep the running one and its splice.
            if self._pour.sink is sink and self._pour.left is None and count is None:
                return self._pour.done
            self.stop_pouring()
        pour = self._pour = sink._poured_into = Pour(self, sink, count, self._was_bulk)
        # Bytes received before go first.
        while self._pieces and self._pour is not None:
            data = self._pieces.popleft()
            rest = pour.pass_on(data)
            self._unread_bytes -= len(data) - len(rest)
            if rest:
                self._pieces.appendleft(rest)
            if pour.left == 0:
                self.stop_pouring()
        if self._pour is not None:
            # The end may have arrived before the pour did, and will not be reported again.
            if self._ended:
                pour.end()
            elif self._lost is not None or sink._lost is not None:
                pour.finish()
        self.steer_reading()
        return pour.done

    def stop_pouring(self) -> None:
        """Deliver what arrives from now on to ``read`` again. Wakes those who wait for the end of the pour."""
        pour, self._pour = self._pour, None
        if pour is not None:
            pour.stop_splice()
            pour.sink._poured_into = None
            self._pour_left, self._was_bulk = pour.left or 0, pour.bulk
            pour.finish()
            self.steer_reading()

    @property
    def pour_left(self) -> int:
        """How many bytes of a counted pour did not go."""
        return self._pour.left or 0 if self._pour is not None else self._pour_left

    @property
    def broken(self) -> bool:
        """Whether it ended other than by a proper end of the peer."""
        return self._lost is not None and not self._ended

    @property
    def full(self) -> bool:
        """Whether writing should wait."""
        return self._write_full or self._write_held

    @property
    def idle(self) -> bool:
        """Whether everything written has reached the kernel, and more may be written."""
        return (
            self._transport is not None
            and not (self._closing or self._eof_written or self.full)
            and not self._transport.get_write_buffer_size()
        )

    def write_uncounted(self, data: bytes) -> None:
        """Write bytes that the meter has counted already."""
        if self._transport is not None and not self._closing and not self._eof_written:
            self._transport.write(data)

    def break_off(self) -> None:
        """Abort as the transport does on an error, for an error that a splice met."""
        if self._lost is None:
            self._lost = ConnectionResetError("the connection was reset")
        self._ended = False
        self.abort()

    def steer_reading(self) -> None:
        """Read from the transport exactly while there is room for what comes."""
        # After the end there is nothing to read. resume_reading on a closing transport raises.
        if self._transport is None or self._ended or self._closing:
            return
        pour = self._pour
        if pour is not None:
            wanted = not pour.sink.full and not self._read_held
            if wanted:
                pour.splice()
                # While the splice reads from the socket, the transport must not: bytes would be taken in turns, out of
                # order.
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
