"""Exposed ports of sandboxes: opens, lists and closes them; ``exposed`` serves the requests to them."""

from __future__ import annotations

from contextlib import suppress

from ramet.doors.http.access.admission import check_sandbox_id
from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.engine_link.sandbox_dialer import dial
from ramet.doors.http.exposed.requests import PREFIX
from ramet.doors.http.records import ExposedPortRecord
from ramet.doors.http.requests import json_answers
from ramet.doors.http.requests.disconnects import ask
from ramet.doors.http.requests.exchange import RequestExchange, Route
from ramet.errors import LimitReached, SandboxClosed, Unreachable
from ramet.protocol import calls
from ramet.protocol.argument_errors import must
from ramet.protocol.network.specs import OWN_PORTS

_EXAMPLE = {
    "port": 8000,
    "url": f"http://127.0.0.1:7070/v1/exposed/{api.TOKEN}/",
    "path": f"/v1/exposed/{api.TOKEN}/",
    "token": api.TOKEN,
}


async def expose(exchange: RequestExchange, sandbox_id: str, port: int) -> ExposedPortRecord:
    """Expose a port under a URL, even if no server listens yet. The same port keeps the same URL."""
    _check_port(port)
    await _check_sandbox(exchange, sandbox_id)
    await _check_not_taken(exchange, sandbox_id, port)
    at_most = exchange.settings.exposed_ports
    exposure = exchange.records.expose(exchange.owner, sandbox_id, port, at_most)
    if exposure is None:
        raise LimitReached(
            f"the sandbox has {at_most} exposed ports, which is the limit",
            hint="close some of them: DELETE .../ports/PORT",
            details={"limit": "exposed_ports", "allowed": at_most},
        )
    return exposure


async def unexpose(exchange: RequestExchange, sandbox_id: str, port: int) -> None:
    """Close the URL of a port, and end the requests that it has open."""
    _check_port(port)
    await _check_sandbox(exchange, sandbox_id)
    if exchange.records.unexpose(exchange.owner, sandbox_id, port):
        over = SandboxClosed("the port is no longer exposed", details={"cause": "closed"})
        exchange.application.relays.cut(over, sandbox_id, port)


def path_of(exposure: ExposedPortRecord) -> str:
    return f"{PREFIX.decode('ascii')}{exposure.token}/"


def _check_port(port: int) -> None:
    if not 1 <= port <= 65535:
        raise must("port", "be from 1 to 65535", port)


async def _check_sandbox(exchange: RequestExchange, sandbox_id: str) -> None:
    """Raise the engine's error unless the sandbox exists and belongs to the caller."""
    await ask(exchange, calls.TERMINAL_LIST, exchange.activity.header(exchange, {"sandbox": sandbox_id}))


async def _check_not_taken(exchange: RequestExchange, sandbox_id: str, port: int) -> None:
    """Refuse the ports that the network of a sandbox uses itself; the engine would not connect to them."""
    if port in OWN_PORTS:
        with suppress(Unreachable):
            (
                await dial(exchange.link, exchange.activity.header(exchange, {"sandbox": sandbox_id, "port": port}))
            ).close()


def _told(exchange: RequestExchange, exposure: ExposedPortRecord) -> dict[str, object]:
    """The exposure with a URL at the address by which the caller reached this server."""
    path = path_of(exposure)
    host = exchange.header(b"host")
    secure = exchange.headers.get(b"x-forwarded-proto") == b"https"
    url = path if host is None else f"{'https' if secure else 'http'}://{host}{path}"
    return {"port": exposure.port, "url": url, "path": path, "token": exposure.token}


@api.operation(
    "expose",
    "network",
    "A URL for a server in a sandbox",
    {
        201: api.answer(
            "Where it can be reached.",
            api.ref("Exposed"),
            _EXAMPLE,
        )
    },
    help="It may be started later. The same port has the same URL; it is open until the sandbox ends.",
    body=api.body(api.record({"port": api.whole(minimum=1, maximum=65535)}), {"port": 8000}),
)
async def _open(exchange: RequestExchange, sandbox_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/ports"""
    body = await exchange.read_fields()
    port = body.whole("port")
    body.done()
    await json_answers.answer_json(exchange, _told(exchange, await expose(exchange, sandbox_id, port)), status=201)


@api.operation(
    "exposedPorts",
    "network",
    "Ports of a sandbox that have URLs",
    {
        200: api.answer(
            "By port.",
            api.record({"ports": api.array(api.ref("Exposed"))}),
            {"ports": [_EXAMPLE]},
        )
    },
    errors=(400, 401, 403, 404, 410, 429, 503),
)
async def _list(exchange: RequestExchange, sandbox_id: str) -> None:
    """GET /v1/sandboxes/{sandbox_id}/ports"""
    await _check_sandbox(exchange, sandbox_id)
    rows = [_told(exchange, exposure) for exposure in exchange.records.exposures(exchange.owner, sandbox_id)]
    await json_answers.answer_json(exchange, {"ports": rows})


@api.operation(
    "unexpose",
    "network",
    "Take a URL back",
    {204: api.answer("It leads nowhere any more.")},
    help="Also of a port that has none. Who is connected through it is cut off.",
    errors=(400, 401, 403, 404, 410, 429, 503),
)
async def _close(exchange: RequestExchange, sandbox_id: str, port: str) -> None:
    """DELETE /v1/sandboxes/{sandbox_id}/ports/{port}: succeeds even if the port is not exposed."""
    if not port.isdecimal() or len(port) > 5:
        raise must("port", "be a number from 1 to 65535", port)
    await unexpose(exchange, check_sandbox_id(sandbox_id), int(port))
    await json_answers.answer_nothing(exchange)


_PORTS = "/v1/sandboxes/{sandbox_id}/ports"
ROUTES: list[Route] = [
    ("POST", _PORTS, _open),
    ("GET", _PORTS, _list),
    ("DELETE", f"{_PORTS}/{{port}}", _close),
]
