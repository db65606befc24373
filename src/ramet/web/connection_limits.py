"""Limits on what a client may do to a connection; uvicorn has none for slow, endless or silent clients.

Each connection has one timer. It fires now and then, checks what the connection waits for, and rearms itself, so that a
request needs no timer of its own.

This file builds on internals of uvicorn's protocol class (``cycle``, ``pipeline``, ``flow``), so pyproject.toml bounds
uvicorn's version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

_KIB = 1024
# Descriptors that are not connections of clients: databases, idle connections to an engine, the interpreter's files.
_OTHER_DESCRIPTORS = 200

_PLAIN_ANSWERS = {
    400: b"invalid HTTP request",
    408: b"the request took too long",
    431: b"the head of the request is too large",
}
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


# Headers that announce a body.
_OF_BODIES = (b"content-length", b"transfer-encoding")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits for one process and for each connection."""

    connections: int = 12_000  # above this, the connection that has waited longest for a request is closed
    requests: int = 6_000  # answered at once: each may hold a connection of its own, to an engine or an upstream
    head_seconds: float = 15.0  # from a connection's beginning, or a request's first byte, to the end of its head
    head_bytes: int = 64 * _KIB
    headers: int = 100
    body_seconds: float = 30.0  # without a byte of a body that is not complete
    idle_seconds: float = 75.0  # between requests
    unread_seconds: float = 60.0  # during which a client reads nothing of a waiting answer
    pipelined: int = 32  # requests after the one that is being answered
    linger_seconds: float = 2.0  # to read an answer that was given before its request was complete

    def fitting(self, descriptors: int) -> Self:
        """The limits, lowered for a process that may open this many descriptors."""
        requests = min(self.requests, descriptors // 4)
        connections = min(self.connections, descriptors - requests - _OTHER_DESCRIPTORS)
        return replace(self, requests=requests, connections=connections)


class _HeadTooLarge(Exception):
    pass


class _BodyBehindUpgrade(Exception):
    """Refuses an upgrade request with a body: the parser would take the body for the new protocol's bytes."""


class CorkedTransport(asyncio.Transport):
    """A transport that can collect writes: uvloop turns each write into a system call, and a packet."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._held: list[bytes] | None = None

    def cork(self) -> None:
        if self._held is None:
            self._held = []

    def uncork(self) -> None:
        held, self._held = self._held, None
        if held:
            self._transport.write(b"".join(held))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._held is None:
            self._transport.write(data)
        else:
            self._held.append(bytes(data))

    def close(self) -> None:
        self.uncork()
        self._transport.close()

    def abort(self) -> None:
        self._held = None
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


class ProtectedProtocol(HttpToolsProtocol):
    """One connection. ``protocol_class`` sets ``limits`` on a subclass."""

    limits: ConnectionLimits
    # Connections that wait for their first or next request, the one that waits longest first. When there are too many
    # connections, the first of these is closed.
    _waiting: dict[ProtectedProtocol, None]
    _corked: CorkedTransport

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._watchdog: asyncio.TimerHandle | None = None
        # When the client must have sent the rest of a head, or the next piece of a body. None: it is our turn.
        self._deadline: float | None = None
        self._head_bytes = 0  # received before the head was complete
        self._header_bytes = 0
        self._between_bytes = 0  # received since the last piece of a body: chunk sizes and trailers
        self._in_head = True  # also before a request's first byte
        self._in_body = False
        self._lingering = False
        # While the client does not read the answer: since when, and how many bytes were unsent then.
        self._unread: tuple[float, int] | None = None
        self._when_gone: Callable[[], None] | None = None
        self._refused = False
        # For the code that takes the connection over: the bytes after the request, and the callback for later bytes.
        self._behind = b""
        self._receive: Callable[[bytes], None] | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = self._corked = CorkedTransport(transport)
        if len(self.connections) > self.limits.connections:
            # Clients that open connections and send nothing must not keep out clients that send requests.
            if not self._waiting:
                self._refused = True
                transport.abort()
                return
            next(iter(self._waiting)).make_room()
        self._waiting[self] = None
        self._wait(self.limits.head_seconds)
        self._arm(self.limits.head_seconds / 3)

    def make_room(self) -> None:
        """Close this connection in favour of a new one."""
        del self._waiting[self]
        self._refused = True
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        # Pipelined requests end with the connection too; uvicorn only notifies the newest one.
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        callback, self._when_gone = self._when_gone, None
        if callback is not None:
            callback()

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """Call back when the client disconnects; soon, if it has done so already."""
        self._when_gone = callback
        if callback is not None and self.transport.is_closing():
            self._when_gone = None
            self.loop.call_soon(callback)

    def cork(self) -> None:
        """Collect writes from now on, until ``uncork``."""
        self._corked.cork()

    def uncork(self) -> None:
        self._corked.uncork()

    def break_off(self) -> None:
        """Abort the connection in the middle of an answer."""
        self.cycle.disconnected = True
        self.transport.abort()

    # Protocols other than HTTP

    def take_over(self, receive: Callable[[bytes], None]) -> None:
        """Pass all further bytes to ``receive`` as they come. The caller also answers the request itself."""
        self._receive = receive
        self.cycle.response_started = self.cycle.response_complete = True
        if self._behind:
            receive(self._behind)
        self.flow.resume_reading()

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    async def drain(self) -> None:
        await self.flow.drain()

    def pause(self) -> None:
        self.flow.pause_reading()

    def resume(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def close(self) -> None:
        """Close the connection once everything written was sent."""
        self.transport.close()

    # Requests

    def data_received(self, data: bytes) -> None:
        if self._receive is not None:
            self._receive(data)
            return
        if self._refused or self.parser is None:
            return
        self._unset_keepalive_if_required()
        if self._in_head:
            if not self._head_bytes:
                self._wait(self.limits.head_seconds)
            self._head_bytes += len(data)
        elif self._in_body:
            self._between_bytes += len(data)
            if not self._lingering:
                self._wait(self.limits.body_seconds)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The request is answered as plain HTTP, unless a handler takes the connection over. The parser reads
            # nothing behind an upgrade, so we stop reading as well.
            self._refused = True
            self._behind = data[upgrade.args[0] :]
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        except httptools.HttpParserError as error:
            self._refuse(431 if isinstance(error.__context__, _HeadTooLarge) else 400)
            return
        # Checked here too, because the parser holds a header or a trailer back until it is complete, however long it
        # grows.
        if (self._head_bytes if self._in_head else self._between_bytes) > self.limits.head_bytes:
            self._refuse(431)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self.scope["ramet.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.limits.head_bytes:
            raise _HeadTooLarge

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if len(self.headers) >= self.limits.headers or self._header_bytes > self.limits.head_bytes:
            raise _HeadTooLarge
        if self._in_body:
            return  # a trailer: a proxy that checked the head has not seen it, so it must not count as a header
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self.limits.pipelined:
            raise _HeadTooLarge
        if self.parser.should_upgrade() and any(name in _OF_BODIES and value != b"0" for name, value in self.headers):
            raise _BodyBehindUpgrade
        self._in_head, self._head_bytes = False, 0
        self._in_body = True
        self._between_bytes = 0
        self._wait(self.limits.body_seconds)
        self._waiting.pop(self, None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._between_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._in_head = True  # of the next request, if one comes
        self._deadline = None
        if self._lingering:
            self._lingering = False
            self._next()
            return
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._in_body:
            # The answer was sent before its request was complete. Closing now would make the kernel send a reset, which
            # may destroy the answer before the client reads it: discard the rest of the body for a while instead.
            self._lingering = True
            self._wait(self.limits.linger_seconds)
            self._arm(self.limits.linger_seconds)
        else:
            self._next()

    def _next(self) -> None:
        """Start the next pipelined request, or wait for one."""
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self._waiting[self] = None
            if not self._head_bytes:
                self._wait(self.limits.idle_seconds)

    def _refuse(self, status: int) -> None:
        self._refused = True
        if not self._idle and not self._in_body:
            # Invalid bytes after a request that is being answered: that answer is the last one.
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        if not self.transport.is_closing():
            if self._idle or not self.cycle.response_started:
                said = _PLAIN_ANSWERS[status]
                self.transport.write(
                    b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
                    % (status, _REASONS[status], len(said), said)
                )
            self.transport.close()

    # Time

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.time(), self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = None

    def _wait(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds

    def _arm(self, seconds: float) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watchdog = self.loop.call_later(max(seconds, 0.01), self._look)

    def _look(self) -> None:
        """Check on behalf of the timer whether the client has exceeded a deadline, and rearm the timer."""
        self._watchdog = None
        now = self.loop.time()
        limits = self.limits
        if self._unread is not None:
            since, left = self._unread
            # The application waits for the client too and writes nothing, so the unsent bytes can only shrink.
            left_now = self.transport.get_write_buffer_size()
            if left_now < left:
                self._unread = now, left_now
            elif now - since >= limits.unread_seconds:
                self.transport.abort()
                return
        if self._deadline is not None and now >= self._deadline:
            if self._in_body and self.flow.read_paused and not self._lingering:
                self._wait(limits.body_seconds)  # we have paused reading, so the client is not late
            else:
                self._late()
                return
        # Other code sets deadlines without touching the timer. Looking three times in the shortest of them keeps every
        # overrun below a third of it.
        often = min(limits.head_seconds, limits.body_seconds, limits.idle_seconds, limits.unread_seconds) / 3
        self._arm(often if self._deadline is None else min(often, self._deadline - now))

    def _late(self) -> None:
        if self._in_head and self._head_bytes and self._idle:
            self._refuse(408)
        # A client that sends nothing is not worth waiting for until it reads what is unsent.
        self.transport.abort() if self.transport.get_write_buffer_size() else self.transport.close()

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete


def protocol_class(limits: ConnectionLimits) -> type[ProtectedProtocol]:
    """A protocol class with these limits, and with a list of waiting connections of its own."""
    return type("ConfiguredProtocol", (ProtectedProtocol,), {"limits": limits, "_waiting": {}})
