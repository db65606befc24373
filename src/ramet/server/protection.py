"""Connections of clients, with bounds: uvicorn's protocol has none for slow, endless and silent ones.

Each connection has one timer. It fires now and then, looks at what the connection waits for, and sets itself anew; so a
request costs no timer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ramet.server.settings import ServerSettings

_PLAIN_ANSWERS = {
    400: b"invalid HTTP request",
    408: b"the request took too long",
    431: b"the head of the request is too large",
}
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


# What announces a body.
_OF_BODIES = (b"content-length", b"transfer-encoding")


class _HeadTooLarge(Exception):
    pass


class _BodyBehindUpgrade(Exception):
    """The parser takes what follows for another protocol: the request would be carried out without its body."""


class CorkedTransport(asyncio.Transport):
    """A transport that can hold writes back for a moment: uvloop makes each a system call, and a packet."""

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
    """One connection. ``settings`` is set on a subclass by ``protocol_class``."""

    settings: ServerSettings
    # Those that no request came from yet, or not the next one, longest first.
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
        # What is waited for, and until when: a request's head, or the next piece of its body. None: for us.
        self._deadline: float | None = None
        self._head_bytes = 0  # that came before the head was complete
        self._header_bytes = 0
        self._between_bytes = 0  # that came behind the last piece of a body: sizes of pieces, trailers
        self._in_head = True  # also before a request's first byte
        self._in_body = False
        self._lingering = False
        # While the client does not read: since when, and how much it had left then.
        self._unread: tuple[float, int] | None = None
        self._when_gone: Callable[[], None] | None = None
        self._refused = False
        # For who takes the connection over: what came behind the request, then all that comes.
        self._behind = b""
        self._receive: Callable[[bytes], None] | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = self._corked = CorkedTransport(transport)
        if len(self.connections) > self.settings.connections:
            # Whoever opens connections and says nothing must not keep out who has something to say.
            if not self._waiting:
                self._refused = True
                transport.abort()
                return
            next(iter(self._waiting)).make_room()
        self._waiting[self] = None
        self._wait(self.settings.head_seconds)
        self._arm(self.settings.head_seconds / 3)

    def make_room(self) -> None:
        """Give this connection up for another one."""
        del self._waiting[self]
        self._refused = True
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        # Requests that wait behind the one that is answered are lost as well; uvicorn tells only the newest.
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        callback, self._when_gone = self._when_gone, None
        if callback is not None:
            callback()

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """Who is to be told when the client hangs up; at once, if it has."""
        self._when_gone = callback
        if callback is not None and self.transport.is_closing():
            self._when_gone = None
            self.loop.call_soon(callback)

    def cork(self) -> None:
        """Hold back what is sent from now on, until ``uncork``."""
        self._corked.cork()

    def uncork(self) -> None:
        self._corked.uncork()

    def break_off(self) -> None:
        """End the connection in the middle of an answer."""
        self.cycle.disconnected = True
        self.transport.abort()

    # Another protocol than HTTP

    def take_over(self, receive: Callable[[bytes], None]) -> None:
        """Give what comes to somebody else from now on, as it comes. The answer to the request is theirs, too."""
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
        """After what was written."""
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
                self._wait(self.settings.head_seconds)
            self._head_bytes += len(data)
        elif self._in_body:
            self._between_bytes += len(data)
            if not self._lingering:
                self._wait(self.settings.body_seconds)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The request is answered as it is, unless it is for somebody who takes the connection over. Behind it the
            # parser reads no more, and so do we.
            self._refused = True
            self._behind = data[upgrade.args[0] :]
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        except httptools.HttpParserError as error:
            self._refuse(431 if isinstance(error.__context__, _HeadTooLarge) else 400)
            return
        # The parser keeps a header, and so a trailer, until it is whole.
        if (self._head_bytes if self._in_head else self._between_bytes) > self.settings.head_bytes:
            self._refuse(431)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self.scope["ramet.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.settings.head_bytes:
            raise _HeadTooLarge

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if len(self.headers) >= self.settings.headers or self._header_bytes > self.settings.head_bytes:
            raise _HeadTooLarge
        if self._in_body:
            return  # a trailer: whoever checked the head, a proxy perhaps, has not seen it, so it means nothing
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self.settings.pipelined:
            raise _HeadTooLarge
        if self.parser.should_upgrade() and any(name in _OF_BODIES and value != b"0" for name, value in self.headers):
            raise _BodyBehindUpgrade
        self._in_head, self._head_bytes = False, 0
        self._in_body = True
        self._between_bytes = 0
        self._wait(self.settings.body_seconds)
        self._waiting.pop(self, None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._between_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._in_head = True  # of the next request, should it come
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
            # An answer was given, and its request is still coming. To hang up now would take the answer back: what
            # comes is thrown away for a while.
            self._lingering = True
            self._wait(self.settings.linger_seconds)
            self._arm(self.settings.linger_seconds)
        else:
            self._next()

    def _next(self) -> None:
        """The next request, if it is there."""
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self._waiting[self] = None
            if not self._head_bytes:
                self._wait(self.settings.idle_seconds)

    def _refuse(self, status: int) -> None:
        self._refused = True
        if not self._idle and not self._in_body:
            # Nonsense behind a request that is being answered: that answer is the last one.
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
        """The timer: has something been waited for too long?"""
        self._watchdog = None
        now = self.loop.time()
        settings = self.settings
        if self._unread is not None:
            since, left = self._unread
            # The application waits as well, so what is left only shrinks.
            left_now = self.transport.get_write_buffer_size()
            if left_now < left:
                self._unread = now, left_now
            elif now - since >= settings.unread_seconds:
                self.transport.abort()
                return
        if self._deadline is not None and now >= self._deadline:
            if self._in_body and self.flow.read_paused and not self._lingering:
                self._wait(settings.body_seconds)  # it is we who do not read
            else:
                self._late()
                return
        # A deadline may be set anew at any time, and is not looked at before: none is missed by more than a third.
        often = min(settings.head_seconds, settings.body_seconds, settings.idle_seconds, settings.unread_seconds) / 3
        self._arm(often if self._deadline is None else min(often, self._deadline - now))

    def _late(self) -> None:
        if self._in_head and self._head_bytes and self._idle:
            self._refuse(408)
        # What is unsent to a client that does not speak is not worth waiting for.
        self.transport.abort() if self.transport.get_write_buffer_size() else self.transport.close()

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete


def protocol_class(settings: ServerSettings) -> type[ProtectedProtocol]:
    """The protocol with these bounds."""
    return type("ConfiguredProtocol", (ProtectedProtocol,), {"settings": settings, "_waiting": {}})
