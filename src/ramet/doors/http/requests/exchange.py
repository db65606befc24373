"""One HTTP request on its way through the server, and the type of a route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from ramet.doors.http.requests import bodies
from ramet.doors.http.requests.errors import Headers, RequestRefused
from ramet.web.request_log import RequestLog

if TYPE_CHECKING:
    from ramet.doors.http.access.auth import ActivityLimits
    from ramet.doors.http.access.keys import KeyLimits, KeyRow
    from ramet.doors.http.engine_link.link import EngineConnections
    from ramet.doors.http.records import ServerRecords
    from ramet.doors.http.requests.application import HttpApplication
    from ramet.doors.http.routes.metrics import ServerMetrics
    from ramet.doors.http.settings import ServerSettings
    from ramet.protocol.network.specs import NetworkSpec

# ASGI is untyped; these are Starlette's names for its parts.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_PIECE_BYTES = 256 * 1024

JSON: Headers = [(b"content-type", b"application/json")]


class RequestConnection(Protocol):
    """What the connection of a request can do beyond ASGI; ``web.connection_limits`` implements it."""

    def when_gone(self, callback: Callable[[], None] | None) -> None: ...
    def cork(self) -> None: ...
    def uncork(self) -> None: ...
    def break_off(self) -> None: ...
    def take_over(self, receive: Callable[[bytes], None]) -> None: ...
    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    async def drain(self) -> None: ...


class ClientDisconnected(Exception):
    """Raised when the client has disconnected in the middle of its request."""


class RequestExchange:
    """A request whose caller is known, and its answer. Everything that is sent goes through here."""

    __slots__ = (
        "_application",
        "_request",
        "_send",
        "counted",
        "headers",
        "held_bytes",
        "key",
        "log",
        "owner",
        "receive",
        "scope",
        "started",
    )

    def __init__(
        self,
        application: HttpApplication,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Mapping[bytes, bytes],
        log: RequestLog,
    ) -> None:
        self._application = application
        self.scope = scope
        self.receive = receive
        self._send = send
        self.headers = headers
        self.log = log
        self.owner = ""
        self.key: KeyRow | None = None
        self.counted = False  # whether ActivityLimits counts this request
        self.held_bytes = 0  # bytes in memory for messages that cannot be passed on piece by piece
        self.started = False  # whether the head of the answer was sent
        self._request: Request | None = None

    @property
    def settings(self) -> ServerSettings:
        return self._application.settings

    @property
    def operates(self) -> bool:
        """Whether the caller may see and end the sandboxes of all keys."""
        return self.key is not None and self.key.operates

    @property
    def limits(self) -> KeyLimits:
        """The limits of the caller's key."""
        return self._application.local_limits if self.key is None else self.key.limits

    @property
    def network(self) -> NetworkSpec:
        """The bound on the network of the caller's sandboxes."""
        return self._application.bound_of(self.key)

    @property
    def link(self) -> EngineConnections:
        return self._application.link

    @property
    def activity(self) -> ActivityLimits:
        return self._application.activity

    @property
    def records(self) -> ServerRecords:
        return self._application.records

    @property
    def metrics(self) -> ServerMetrics:
        return self._application.metrics

    @property
    def application(self) -> HttpApplication:
        return self._application

    @property
    def request(self) -> Request:
        """The request as a Starlette object."""
        if self._request is None:
            self._request = Request(self.scope, self.receive, self.send)
        return self._request

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def hold(self, size_bytes: int) -> None:
        """Count bytes that are kept in memory until the request ends. Raises RequestRefused (429) above the limits."""
        self.held_bytes += size_bytes
        self.activity.hold(self.owner, size_bytes)

    # The request's body

    async def read_body(self, limit_bytes: int | None = None) -> bytes:
        """Read the whole body. Raises RequestRefused (413) as soon as it is known to be too large."""
        limit = self.settings.body_bytes if limit_bytes is None else limit_bytes
        self.check_length(limit)
        message = await self.receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            body: bytes = message.get("body", b"")
            self.log.received_bytes += len(body)
            if len(body) > limit:
                raise too_large(limit)
            return body
        parts = bytearray()
        while True:
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            piece: bytes = message.get("body", b"")
            self.log.received_bytes += len(piece)
            self.hold(len(piece))
            parts += piece
            if len(parts) > limit:
                raise too_large(limit)
            if not message.get("more_body"):
                return bytes(parts)
            message = await self.receive()

    def check_length(self, limit_bytes: int) -> None:
        length = self.headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > limit_bytes:
            raise too_large(limit_bytes)

    async def read_fields(self, limit_bytes: int | None = None) -> bodies.JsonBody:
        """Read the body as a JSON object."""
        return bodies.JsonBody(bodies.parse_object(await self.read_body(limit_bytes)))

    async def read_options(self, struct: type[bodies.Options], only: Collection[str] | None = None) -> bodies.Options:
        """Read the body as the arguments of an operation. Raises InvalidArgument."""
        return (await self.read_fields()).options(struct, only)

    # The answer

    async def send(self, message: Message) -> None:
        """Send one ASGI message, and note it for the log."""
        if message["type"] == "http.response.start":
            self.started = True
            self.log.status = message["status"]
        else:
            self.log.sent_bytes += len(message.get("body", b""))
        await self._send(message)

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        self.log.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, more: bool = True) -> None:
        """Send a piece of the answer. Waits while the client is slow; does nothing once it has disconnected."""
        self.log.sent_bytes += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def break_off(self) -> None:
        """Abort the connection in the middle of an answer, so that the client does not take it for a whole one."""
        connection: RequestConnection = self.scope["ramet.connection"]
        connection.break_off()

    def switch(self, head: bytes, receive: Callable[[bytes], None]) -> None:
        """Switch to another protocol, beginning with these bytes."""
        connection: RequestConnection = self.scope["ramet.connection"]
        self.started = True
        self.log.status = 101
        connection.write(head)
        connection.take_over(receive)

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer, in one packet if it fits."""
        if status != 204:
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        await self.begin(status, headers, body[:_PIECE_BYTES], more=len(body) > _PIECE_BYTES)
        # Send the rest no faster than the client reads: no quota counts the bytes in the connection's buffer.
        for start in range(_PIECE_BYTES, len(body), _PIECE_BYTES):
            end = start + _PIECE_BYTES
            await self.write(body[start:end], more=end < len(body))

    async def begin(self, status: int, headers: Headers, body: bytes, more: bool = True) -> None:
        """Send the head of an answer together with its first piece."""
        connection: RequestConnection = self.scope["ramet.connection"]
        connection.cork()
        try:
            await self.start(status, headers)
            await self.write(body, more)
        finally:
            connection.uncork()

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """Call back if the client disconnects before the answer is complete. There is one callback at a time."""
        connection: RequestConnection = self.scope["ramet.connection"]
        connection.when_gone(callback)


Handler = Callable[..., Awaitable[Response | None]]
Route = tuple[str, str, Handler]  # method, path with {names}, handler. A handler that returns None has answered itself


def too_large(limit_bytes: int) -> RequestRefused:
    return RequestRefused(413, f"the body of this request may have at most {limit_bytes} bytes", code="too_large")
