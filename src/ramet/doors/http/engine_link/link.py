"""The link to the engine: connections over its unix socket, and its events about sandboxes."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType

from ramet.doors.http.engine_link.events import SandboxEvent, read_event
from ramet.doors.http.engine_link.frame_relay import FrameScanner
from ramet.errors import EngineLost, ProtocolError, RametError
from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode
from ramet.protocol.values.listing import SandboxRow

_NOT_RUNNING = "the engine is not running; a new one is being started"
_ENDED = "the engine ended before it had answered; its sandboxes are gone"
_HINT = "try again in a moment"

# Bytes of an answer that were not taken yet: above the first, reading from the engine pauses; below the second, it
# resumes.
_HIGH_BYTES = 1024 * 1024
_LOW_BYTES = 256 * 1024

# When an answer has become this long, its larger pieces are collected for a moment. The kernel delivers a large output
# in pieces of a few pages, and passing on each one alone costs more than producing the output.
_MUCH_BYTES = 256 * 1024
_SMALL_BYTES = 2048
_ENOUGH_BYTES = 256 * 1024
_GATHER_SECONDS = 0.001

_FOLLOWING = frozenset((calls.TERMINAL_ATTACH, calls.TERMINAL_READ, calls.WATCH))

_FIRST_WAIT_SECONDS = 0.05
_LAST_WAIT_SECONDS = 1.0


Introduce = Callable[[], Awaitable[socket.socket]]


class EngineConnections:
    """Owns all connections to the engine. Each carries one call at a time; idle ones are kept for later calls."""

    def __init__(self, idle_at_most: int = 64) -> None:
        self._introduce: Introduce | None = None
        self._idle: list[_EngineConnection] = []
        self._idle_at_most = idle_at_most
        self._watching: asyncio.Task[None] | None = None
        self._closed = False
        self._active: set[EngineCall] = set()
        self.up = False
        self.rows: dict[str, SandboxRow] = {}
        self.on_event: list[Callable[[SandboxEvent], None]] = []

    def __repr__(self) -> str:
        state = "up" if self.up else "down"
        return f"<EngineConnections {state}, {len(self.rows)} sandboxes, {len(self._idle)} idle connections>"

    async def ask(self, kind: int, header: Mapping[str, object], blob: bytes = b"") -> Frame:
        """Make a call with one answer. Raises the error that the engine answers."""
        async with self.call() as call:
            await call.send(encode(kind, header, blob))
            async for frame in call.frames():
                if frame.kind == calls.ERROR:
                    raise calls.read_error(frame.header)
        return frame

    def call(self) -> EngineCall:
        """A call, as a context manager.

        Leaving it before the final frame closes the connection and so cancels the call.
        """
        return EngineCall(self)

    async def introduced(self) -> socket.socket:
        """A new connection, which the caller owns. Raises EngineLost."""
        if not self.up or self._introduce is None:
            raise EngineLost(_NOT_RUNNING, hint=_HINT)
        try:
            return await self._introduce()
        except OSError as error:
            raise EngineLost(_NOT_RUNNING, hint=_HINT) from error

    def start(self, introduce: Introduce) -> None:
        """Follow the engine's events from now on. ``introduce`` returns new connections to it, or raises OSError."""
        self._introduce = introduce
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        self._closed = True
        self.up = False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        while self._idle:
            self._idle.pop().close()

    @property
    def busy(self) -> bool:
        """Whether there are calls that end by themselves, unlike those that follow a terminal."""
        return any(call.request_kind not in _FOLLOWING for call in self._active)

    def give_up(self, error: RametError) -> None:
        """End all calls with this error."""
        for call in list(self._active):
            call.failed(error)

    # Connections

    async def begin(self, call: EngineCall) -> _EngineConnection:
        if not self.up:
            raise EngineLost(_NOT_RUNNING, hint=_HINT)
        connection = await self._connect()
        self._active.add(call)
        return connection

    def over(self, call: EngineCall) -> None:
        self._active.discard(call)

    async def _connect(self) -> _EngineConnection:
        if self._idle:
            return self._idle.pop()
        return await self._new()

    async def _new(self) -> _EngineConnection:
        try:
            assert self._introduce is not None
            introduced = await self._introduce()
            try:
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_unix_connection(lambda: _EngineConnection(self), sock=introduced)
            except BaseException:
                introduced.close()
                raise
        except OSError as error:
            raise EngineLost(_NOT_RUNNING, hint=_HINT) from error
        return connection

    def give_back(self, connection: _EngineConnection) -> None:
        if self._closed or connection.lost or len(self._idle) >= self._idle_at_most:
            connection.close()
        else:
            self._idle.append(connection)

    def drop(self, connection: _EngineConnection) -> None:
        """Forget an idle connection that has ended."""
        if connection in self._idle:
            self._idle.remove(connection)

    # Events

    async def _watch(self) -> None:
        wait_seconds = _FIRST_WAIT_SECONDS
        while True:
            try:
                async for event in self._events():
                    wait_seconds = _FIRST_WAIT_SECONDS
                    self._take(event)
            except (RametError, OSError):
                pass  # the engine is gone or not up yet; each caller gets an error of its own
            except Exception as error:
                # A bug must not end this task: without it the link would stay down, or up, for ever.
                context = {"message": "news of the engine could not be taken", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
            if self.up:
                self._take(SandboxEvent("down"))
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(wait_seconds * 2, _LAST_WAIT_SECONDS)

    async def _events(self) -> AsyncIterator[SandboxEvent]:
        async with EngineCall(self, await self._new()) as call:
            await call.send(encode(calls.WATCH, {}))
            async for frame in call.frames():
                if frame.kind == calls.ERROR:
                    raise calls.read_error(frame.header)
                if frame.kind == calls.NEWS:
                    yield read_event(frame.header)

    def _take(self, event: SandboxEvent) -> None:
        if event.kind in ("all", "down"):
            self.rows = {row.id: row for row in event.sandboxes}
            self.up = event.kind == "all"
        elif event.kind == "begun":
            self.rows.update((row.id, row) for row in event.sandboxes)
        else:
            self.rows.pop(event.id, None)
        for callback in self.on_event:
            callback(event)


class EngineCall:
    """One call on a connection of its own. Keeps what comes until it is taken, up to a limit."""

    def __init__(self, link: EngineConnections, connection: _EngineConnection | None = None) -> None:
        self._link = link
        self._connection = connection
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._total = 0
        self._gathering: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        # `wake` may be called while no task waits in `take`; the flag makes the next `take` return at once.
        self._woken = False
        self.answer = FrameScanner()
        self._request = FrameScanner()
        self._error: RametError | None = None

    async def __aenter__(self) -> EngineCall:
        if self._connection is None:
            self._connection = await self._link.begin(self)
        self._connection.call = self
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the call. If it was not complete, the engine sees the connection close and cancels it."""
        # Cleared first: a disconnect of the client closes the call, and leaving the context closes it again.
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._link.over(self)
        connection.call = None
        if self._paused:
            connection.transport.resume_reading()
        # After an error the engine may close the connection, or wait for the rest of a file that it has refused.
        whole = self.answer.final and self.answer.kind != calls.ERROR and self._request.between_frames
        if whole and self._error is None:
            self._link.give_back(connection)
        else:
            connection.close()
            # A task may still wait in `take`; nothing else would wake it.
            self.failed(EngineLost(_ENDED))

    _paused = False

    # To the engine

    async def send(self, data: bytes) -> None:
        """Send data, and wait until there is room for more. Raises EngineLost."""
        self.send_nowait(data)
        if self._connection is not None:
            await self._connection.wait_for_room()

    def send_nowait(self, data: bytes) -> None:
        if self._connection is None or self._connection.lost:
            raise EngineLost(_ENDED, hint=_HINT)
        self._request.feed(data)
        self._connection.transport.write(data)

    async def flush(self) -> None:
        """Wait until the kernel took everything, because aborting the connection discards what is in our buffer.

        For a call that is aborted next: it leaves the connection without a write buffer.
        """
        connection = self._connection
        if connection is not None and not connection.lost:
            connection.transport.set_write_buffer_limits(0)
            await connection.wait_for_room()

    # From the engine

    def received(self, data: bytes) -> None:
        try:
            self.answer.feed(data)
        except ProtocolError as error:
            self.failed(error)
            return
        self._chunks.append(data)
        size = len(data)
        self._size += size
        self._total += size
        if self._size > _HIGH_BYTES and self._connection is not None and not self._paused:
            self._paused = True
            self._connection.transport.pause_reading()
        if size < _SMALL_BYTES or self._total < _MUCH_BYTES or self.answer.final or self._size >= _ENOUGH_BYTES:
            self.wake()
        elif self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self.wake()

    def failed(self, error: RametError) -> None:
        if self._error is None:  # the first error is the cause; losing the connection often follows from it
            self._error = error
        self.wake()

    def wake(self) -> None:
        """Make ``take`` return, even with nothing."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        else:
            self._woken = True

    @property
    def request_kind(self) -> int:
        return self._request.first_kind

    @property
    def over(self) -> bool:
        """Whether the final frame has been taken."""
        return self.answer.final and not self._chunks

    async def take(self) -> bytes:
        """Everything that has come; waits if there is nothing.

        Empty only after ``wake``. Raises the error of the call.
        """
        if not self._chunks or self._gathering is not None:
            if self._error is not None:
                raise self._error
            if not self._woken:
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            self._woken = False
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                return b""
        self._woken = False
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self._paused and self._connection is not None:
            self._paused = False
            self._connection.transport.resume_reading()
        return data

    async def raw(self) -> AsyncIterator[tuple[bytes, bool]]:
        """The pieces of the answer as they come, each with whether it is the last."""
        while not self.over:
            data = await self.take()
            if data:
                yield data, self.over

    async def frames(self, count: Callable[[int], None] = lambda _: None) -> AsyncIterator[Frame]:
        """The frames of the answer. ``count`` gets the number of bytes as they come, even of incomplete frames."""
        decoder = FrameDecoder(FROM_ENGINE)
        while not self.over:
            data = await self.take()
            count(len(data))
            for frame in decoder.feed(data):
                yield frame


class _EngineConnection(asyncio.Protocol):
    """One connection to the engine."""

    transport: asyncio.Transport

    def __init__(self, link: EngineConnections) -> None:
        self._link = link
        self.call: EngineCall | None = None
        self.lost = False
        self._full: asyncio.Future[None] | None = None

    async def wait_for_room(self) -> None:
        """Wait until the transport takes more, or is gone."""
        if self._full is not None:
            await self._full

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.call is not None:
            self.call.received(data)
        else:
            self.close()  # data between two calls: the two sides are out of step

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.resume_writing()  # the transport will not do so any more, and a sender may wait in `wait_for_room`
        if self.call is not None:
            self.call.failed(EngineLost(_ENDED, hint=_HINT))
        else:
            self._link.drop(self)

    def pause_writing(self) -> None:
        self._full = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._full is not None:
            if not self._full.done():
                self._full.set_result(None)
            self._full = None

    def close(self) -> None:
        # At once: `connection_lost` comes only in the next round of the loop, and no call may reuse it until then.
        self.lost = True
        self.transport.abort()
