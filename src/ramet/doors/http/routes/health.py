"""Health checks for supervisors and load balancers: is the server alive, has it an engine, does it accept work?

They need no key, and say nothing about anybody's sandboxes.
"""

from __future__ import annotations

from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.requests.errors import Headers, retry_headers
from ramet.doors.http.requests.exchange import JSON, RequestExchange, Route
from ramet.doors.http.requests.json_answers import encode
from ramet.doors.http.requests.queries import QueryFields
from ramet.protocol.checks import MIB
from ramet.transport import resolving

_READY = api.record(
    {
        "ready": api.flag(),
        "engine": api.flag("There is an engine."),
        "stopping": api.flag("The server was told to stop."),
        "room": api.flag("Its bounds leave room for one more sandbox."),
    }
)
_TEXT: Headers = [(b"content-type", b"text/plain; charset=utf-8")]


@api.operation(
    "livez",
    "server",
    "Whether the server answers at all",
    {200: api.answer("It does, with or without an engine.", api.text(), "ok", kind="text/plain")},
    errors=(),
    public=True,
)
async def _live(exchange: RequestExchange) -> None:
    """GET /v1/livez: answers even without an engine, because restarting the server would not bring one back sooner."""
    await exchange.respond(200, _TEXT, b"ok")


@api.operation(
    "healthz",
    "server",
    "Whether the server answers, and has an engine",
    {
        200: api.answer("It does.", api.text(), "ok", kind="text/plain"),
        503: api.answer(
            "It answers, but its engine ended or is being started.",
            api.text(),
            "the engine is not running; a new one is being started",
            kind="text/plain",
        ),
    },
    errors=(),
    public=True,
)
async def _health(exchange: RequestExchange) -> None:
    """GET /v1/healthz"""
    up = exchange.link.up
    said = b"ok" if up else b"the engine is not running; a new one is being started"
    await exchange.respond(200 if up else 503, _TEXT, said)


@api.operation(
    "readyz",
    "server",
    "Whether the server takes work",
    {
        200: api.answer("It does.", _READY, {"ready": True, "engine": True, "stopping": False, "room": True}),
        503: api.answer(
            "It has no engine at the moment, or is about to stop, or has no room if that was asked for.",
            _READY,
            {"ready": False, "engine": False, "stopping": False, "room": True},
        ),
    },
    parameters=[api.query("room", "Count a server without room for one more sandbox as not ready.", api.flag())],
    errors=(400,),
    public=True,
)
async def _ready(exchange: RequestExchange) -> None:
    """GET /v1/readyz

    A server without room for another sandbox still serves those that it has, so a load balancer must keep it. A program
    that looks for a place for a new sandbox asks with ``?room=true``.
    """
    query = QueryFields(exchange.scope["query_string"])
    needs_room = query.flag("room")
    query.done()
    engine, stopping, room = exchange.link.up, exchange.activity.closing, has_room(exchange)
    ready = engine and not stopping and (room or not needs_room)
    status = 200 if ready else 503
    told = {"ready": ready, "engine": engine, "stopping": stopping, "room": room}
    await exchange.respond(status, [*JSON, *retry_headers(status)], encode(told))


def has_room(exchange: RequestExchange) -> bool:
    """Whether the server's limits leave room for one more sandbox with default settings."""
    settings, rows = exchange.settings, exchange.link.rows
    if settings.all_sandboxes is not None and len(rows) >= settings.all_sandboxes:
        return False
    if settings.all_memory_mib is None:
        return True
    taken_bytes = sum(row.memory_limit_bytes for row in rows.values())
    return taken_bytes + resolving.default_memory_mib() * MIB <= settings.all_memory_mib * MIB


ROUTES: list[Route] = [
    ("GET", "/v1/livez", _live),
    ("GET", "/v1/healthz", _health),
    ("GET", "/v1/readyz", _ready),
]
