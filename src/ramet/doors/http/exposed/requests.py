"""``/v1/exposed/TOKEN/...``: a reverse proxy to a server in a sandbox, for everybody who knows the token.

Any method, both directions as streams, websockets too. Each request has its own connection to the sandbox.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager

from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.engine_link.sandbox_dialer import dial
from ramet.doors.http.exposed import heads
from ramet.doors.http.exposed.answers import SandboxAnswer
from ramet.doors.http.exposed.heads import ExposedRequestHead
from ramet.doors.http.exposed.links import ExposedPlace
from ramet.doors.http.exposed.streams import SandboxStream
from ramet.doors.http.records import ExposedPortRecord
from ramet.doors.http.requests.errors import RequestRefused
from ramet.doors.http.requests.exchange import ClientDisconnected, RequestConnection, RequestExchange
from ramet.errors import LimitReached, RametError, SandboxClosed, Unreachable

PREFIX = b"/v1/exposed/"
TEMPLATE = "/v1/exposed/{token}/{path}"
_TOKEN = re.compile(rb"[A-Za-z0-9_-]{32}")
_REGION = re.compile(rb"/r/[^/]*(?=/)")


def path_of(raw_path: bytes) -> bytes | None:
    """The raw path after the prefix, because the server in the sandbox decodes paths itself. None: another path."""
    path = raw_path
    if raw_path.startswith(b"/r/"):
        path = _REGION.sub(b"", raw_path, count=1)
    return path[len(PREFIX) :] if path.startswith(PREFIX) else None


class Relays:
    """Open requests to sandboxes: counts them, and ends them when their sandbox or their exposure ends."""

    def __init__(self, at_most: int) -> None:
        """``at_most`` bounds the open requests of one token."""
        self._at_most = at_most
        self._open: dict[tuple[str, int], set[Relay]] = {}

    def __repr__(self) -> str:
        return f"<Relays: {sum(map(len, self._open.values()))} to {len(self._open)} ports>"

    @contextmanager
    def entered(self, relay: Relay, exposure: ExposedPortRecord) -> Iterator[None]:
        place = exposure.sandbox, exposure.port
        relays = self._open.setdefault(place, set())
        if len(relays) >= self._at_most:
            raise LimitReached(
                f"{len(relays)} requests to this port are in progress, which is the limit",
                hint="wait for some of them to end",
                details={"limit": "exposed_requests", "allowed": self._at_most},
            )
        relays.add(relay)
        try:
            yield
        finally:
            relays.discard(relay)
            if not relays:
                self._open.pop(place, None)

    def cut(self, why: RametError, sandbox_id: str | None = None, port: int | None = None) -> None:
        """End the requests to one port, to one sandbox, or all of them."""
        for place, relays in list(self._open.items()):
            if sandbox_id in (None, place[0]) and port in (None, place[1]):
                for relay in list(relays):
                    relay.cut(why)


async def answer(exchange: RequestExchange, rest: bytes) -> None:
    """Answer a request; ``rest`` is its path after the prefix."""
    token, slash, path = rest.partition(b"/")
    exposure = exchange.records.exposure(token.decode("ascii")) if _TOKEN.fullmatch(token) else None
    if exposure is None:
        raise RequestRefused(404, "nothing is exposed here", code="not_found")
    exchange.owner = exposure.owner
    exchange.log.sandbox = exposure.sandbox
    exchange.activity.enter(exposure.owner)
    exchange.counted = True
    exchange.activity.check_open()
    _check_alive(exchange, exposure)
    place = ExposedPlace(exposure.port, PREFIX + token, b"/" + path, exchange.headers.get(b"host", b""))
    method = exchange.log.method
    if not slash and method in ("GET", "HEAD") and b"text/html" in exchange.headers.get(b"accept", b""):
        # The client may be a browser: relative links of a page need the slash at the end of the prefix.
        await exchange.respond(308, [(b"location", place.prefix + b"/" + _query(exchange))], b"")
        return
    origin = exchange.headers.get(b"origin")
    if method == "OPTIONS" and origin == b"null" and b"access-control-request-method" in exchange.headers:
        requested = exchange.headers.get(b"access-control-request-headers")
        await exchange.respond(204, heads.preflight_headers(requested), b"")
        return
    head = heads.request_head(place, method, b"/" + path, exchange.scope["query_string"], exchange.scope["headers"])
    relay = Relay(exchange, place, head)
    with exchange.application.relays.entered(relay, exposure):
        await relay.run(exposure)


def _check_alive(exchange: RequestExchange, exposure: ExposedPortRecord) -> None:
    ended = exchange.records.ended_cause(exposure.owner, exposure.sandbox)
    if ended is not None:
        raise SandboxClosed(ended.message, details={"cause": ended.cause, "ended_ms": ended.ended_ms})


def _query(exchange: RequestExchange) -> bytes:
    query: bytes = exchange.scope["query_string"]
    return b"?" + query if query else b""


class Relay:
    """One request, and its connection to a sandbox."""

    def __init__(self, exchange: RequestExchange, place: ExposedPlace, head: ExposedRequestHead) -> None:
        self._exchange = exchange
        self._place = place
        self._head = head
        self._answer = SandboxAnswer(exchange.log.method, head.websocket)
        self._stream: SandboxStream | None = None
        self._gone = False
        self._cut: RametError | None = None

    def cut(self, why: RametError) -> None:
        """End the request, because its sandbox or its exposure has ended."""
        self._cut = why
        self._close()

    def _leave(self) -> None:
        self._gone = True
        self._close()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.abort()

    async def run(self, exposure: ExposedPortRecord) -> None:
        exchange = self._exchange
        header = {"sandbox": exposure.sandbox, "port": exposure.port, "owner": exposure.owner}
        stream = self._stream = await SandboxStream.open(await dial(exchange.link, header))
        if self._cut is not None:
            stream.abort()
        exchange.when_gone(self._leave)
        sending = None
        try:
            stream.write(self._head.data)
            if self._head.body:
                sending = asyncio.ensure_future(self._send_body(stream))
            await self._pass_on(stream)
        finally:
            exchange.when_gone(None)
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            stream.abort()

    async def _send_body(self, stream: SandboxStream) -> None:
        """Send the body.

        The server may answer and disconnect before it has read everything; its answer still counts.
        """
        more = True
        while more:
            message = await self._exchange.receive()
            if message["type"] == "http.disconnect":
                return  # when_gone has closed the stream
            data, more = message.get("body", b""), message.get("more_body", False)
            if data:
                stream.write(b"%x\r\n%s\r\n" % (len(data), data) if self._head.chunked else data)
                await stream.drain()
        if self._head.chunked:
            stream.write(b"0\r\n\r\n")

    async def _pass_on(self, stream: SandboxStream) -> None:
        exchange, answer = self._exchange, self._answer
        try:
            async with asyncio.timeout(exchange.settings.exposed_seconds):
                data = await self._read_head(stream)
        except TimeoutError:
            raise RequestRefused(504, "the server in the sandbox does not answer", code=Unreachable.code) from None
        if answer.switched:
            await self._switch(stream)
            return
        origin = exchange.headers.get(b"origin")
        headers = heads.answer_headers(self._place, answer.status, answer.headers, origin)
        await exchange.begin(answer.status, headers, data, more=not answer.complete)
        while not answer.complete:
            try:
                data = await self._read_body(stream)
            except RequestRefused:
                exchange.break_off()  # the client must not take the part that came for the whole
                return
            if data or answer.complete:
                await exchange.write(data, more=not answer.complete)

    async def _read_head(self, stream: SandboxStream) -> bytes:
        """Read the head of the answer; returns what came of the body with it."""
        answer = self._answer
        while True:
            piece = await self._read(stream)
            if not piece and self._cut is not None:
                raise self._cut
            data = answer.feed(piece) if piece else b""
            if answer.status:
                return data
            if not piece:
                answer.end()

    async def _read_body(self, stream: SandboxStream) -> bytes:
        piece = await self._read(stream)
        if piece:
            return self._answer.feed(piece)
        if self._cut is not None or stream.broken or not self._answer.end():
            raise RequestRefused(
                502,
                "the server in the sandbox closed the connection in the middle of its answer",
                code=Unreachable.code,
            )
        return b""

    async def _read(self, stream: SandboxStream) -> bytes:
        data = await stream.read()
        if self._gone:
            raise ClientDisconnected
        return data

    async def _switch(self, stream: SandboxStream) -> None:
        """Become a websocket: bytes pass both ways, no faster than either side reads them."""
        waiting: set[asyncio.Task[None]] = set()

        async def wait_for_room() -> None:
            await stream.drain()
            connection.resume()

        def received(data: bytes) -> None:
            stream.write(data)
            if stream.full and not waiting:
                connection.pause()
                task = asyncio.ensure_future(wait_for_room())
                waiting.add(task)
                task.add_done_callback(waiting.discard)

        connection: RequestConnection = self._exchange.scope["ramet.connection"]
        self._exchange.switch(heads.upgrade_head(self._answer.headers) + self._answer.behind, received)
        try:
            while data := await self._read(stream):
                connection.write(data)
                await connection.drain()
        finally:
            for task in waiting:
                task.cancel()
            connection.close()


def _described(method: str) -> tuple[str, str, api.Operation]:
    return (
        method,
        TEMPLATE,
        api.Operation(
            f"exposed{method.capitalize()}",
            "network",
            "A server in a sandbox",
            {
                "default": api.answer(
                    (
                        "Whatever the server in the sandbox answers. Cookies and headers about the whole address "
                        "are taken out, and pages get an origin of their own (`Content-Security-Policy: "
                        "sandbox`)."
                    ),
                    {},
                    kind="*/*",
                )
            },
            help=(
                "Any method is passed on, also those that are not listed here, both ways as streams; so "
                "are websockets. The token is the key: `Authorization` and cookies are not passed on."
            ),
            body=api.body(api.BINARY, required=False, kind=api.BYTES) if method in ("POST", "PUT") else None,
            errors=(400, 404, 410, 429, 501, 502, 503, 504),
            public=True,
        ),
    )


# Not in the table of routes, since any method is passed on: these stand for all.
DESCRIBED = [_described(method) for method in ("GET", "POST", "PUT", "DELETE")]
