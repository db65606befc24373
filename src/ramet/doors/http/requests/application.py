"""Routes a request: identifies the caller, finds the handler, and turns a failure into an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable

from ramet.doors.http.access import admission, network_bounds
from ramet.doors.http.access.admission import Creation
from ramet.doors.http.access.audit_log import ROUTE_ACTIONS, Audit
from ramet.doors.http.access.auth import ActivityLimits, Authenticator
from ramet.doors.http.access.keys import KeyLimits, KeyRow
from ramet.doors.http.engine_link.frame_relay import Heartbeat
from ramet.doors.http.engine_link.link import EngineConnections
from ramet.doors.http.exposed import requests
from ramet.doors.http.records import ServerRecords
from ramet.doors.http.requests import errors
from ramet.doors.http.requests.errors import RequestRefused
from ramet.doors.http.requests.exchange import (
    JSON,
    ClientDisconnected,
    Handler,
    Receive,
    RequestExchange,
    Route,
    Scope,
    Send,
)
from ramet.doors.http.routes import call
from ramet.doors.http.routes.metrics import ServerMetrics
from ramet.doors.http.settings import ServerSettings
from ramet.errors import RametError, SandboxClosed
from ramet.protocol.network.specs import NetworkSpec
from ramet.web.request_log import Log, RequestLog

__all__ = ["HttpApplication", "RequestExchange", "Handler"]

# The status in the log of a request whose client disconnected before the answer; nginx uses the same number.
_CLIENT_GONE = 499
# Routes that need no key: they reveal nothing about anybody, or have a token in their path.
_PUBLIC = frozenset(("/", "/docs", "/v1/healthz", "/v1/livez", "/v1/readyz", "/v1/openapi.json", requests.TEMPLATE))
# Routes that a key of the scope "metrics" may use.
_FOR_METRICS = frozenset(("/metrics", "/v1/whoami"))
_HEAD_AS_GET = _PUBLIC | {"/metrics", "/v1/whoami", "/v1/sandboxes", "/v1/sandboxes/{sandbox_id}", "/v1/snapshots"}


class HttpApplication:
    """The ASGI application. It owns none of its parts: the worker makes them and closes them."""

    def __init__(
        self,
        settings: ServerSettings,
        link: EngineConnections,
        records: ServerRecords,
        log: Log,
        audit: Audit,
        metrics: ServerMetrics,
        creation: Creation,
        routes: Iterable[Route],
    ) -> None:
        self.settings = settings
        self.creation = creation
        self.link = link
        self.records = records
        self.activity = ActivityLimits(settings)
        self.local_limits = KeyLimits(
            sandboxes=settings.local_sandboxes,
            concurrent_cells=settings.local_cells,
            templates=settings.local_templates,
        )
        self.metrics = metrics
        self.relays = requests.Relays(settings.exposed_requests)
        self._bound = None if settings.network is None else network_bounds.read_bound(settings.network)
        self.heartbeat = Heartbeat(settings.heartbeat_seconds)
        self.log = log
        self.audit = audit
        self._door = Authenticator(settings, records)
        self._router = Router(routes)
        self._background: set[asyncio.Task[None]] = set()

    def in_background(self, work: Coroutine[object, object, None]) -> None:
        """Run a coroutine that no request waits for. It must end by itself, and must not raise."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)  # the loop's own reference is weak: the task could be collected while it runs
        task.add_done_callback(self._background.discard)

    def bound_of(self, key: KeyRow | None) -> NetworkSpec:
        """The network rules that bound the sandboxes of a key; None stands for callers that need no key."""
        if key is None:
            return network_bounds.ANYTHING_PUBLIC if self._bound is None else self._bound
        return key.network if self._bound is None else network_bounds.less(key.network, self._bound)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"a connection of type {scope['type']!r}")
        headers = dict(scope["headers"])
        client = scope.get("client")
        traceparent = headers.get(b"traceparent")
        log = RequestLog(
            scope["method"],
            None if client is None else client[0],
            None if traceparent is None else traceparent.decode("latin-1"),
        )
        exchange = RequestExchange(self, scope, receive, send, headers, log)
        try:
            await self._answer(exchange)
        except ClientDisconnected:
            log.status = log.status or _CLIENT_GONE  # the client has disconnected, so there is no answer
        except (RametError, RequestRefused) as error:
            await self._fail(exchange, error)
        except Exception as error:
            self.log.event("request failed", level="error", route=log.route, error=_in_one_line(error))
            if exchange.started:
                raise  # uvicorn aborts the connection, so that the client does not take half an answer for a whole one
            await self._fail(exchange, RametError("the server failed at this request"))
        finally:
            if exchange.counted:
                self.activity.leave(exchange.owner, exchange.held_bytes)
            self.metrics.request(log.method, log.route, log.status, log.seconds)
            self.log.request(log)
            self.audit.request(log)

    async def _answer(self, exchange: RequestExchange) -> None:
        scope, log = exchange.scope, exchange.log
        if (rest := requests.path_of(scope["raw_path"])) is not None:
            log.route = requests.TEMPLATE
            await requests.answer(exchange, rest)
            return
        path: str = scope["path"]
        if path.startswith("/r/"):
            path = _without_region(path)
        if path == call.PATH and log.method == "POST":
            # Nine of ten requests are calls of the SDK, so they skip the table of routes.
            log.route = call.PATH
            self._let_in(exchange, call.PATH)
            await call.call(exchange)
            return
        found = self._router.find(path)
        if found is not None:
            log.route = found.template
        if found is None or found.template not in _PUBLIC:
            # Authenticate first: a caller without a key must not learn which paths and ids exist.
            self._let_in(exchange, None if found is None else found.template)
        if found is None:
            raise RequestRefused(404, "no such path", code="not_found")
        handler = found.handlers.get(log.method)
        if handler is None and log.method == "HEAD" and found.template in _HEAD_AS_GET:
            handler = found.handlers.get("GET")
        if handler is None:
            raise RequestRefused(
                405, f"{log.method[:20]} is not allowed here", code="wrong_method", headers={"allow": found.allowed}
            )
        log.action = ROUTE_ACTIONS.get((log.method, found.template))
        sandbox_id = found.parameters.get("sandbox_id")
        if sandbox_id is not None:
            log.sandbox = sandbox_id[:64]
            if log.method != "DELETE":
                admission.check_sandbox_id(sandbox_id)
        response = await handler(exchange, **found.parameters)
        if response is not None:
            await response(scope, exchange.receive, exchange.send)

    def _let_in(self, exchange: RequestExchange, template: str | None) -> None:
        exchange.owner, exchange.key = self._door.identify(exchange.headers)
        exchange.log.owner = exchange.owner
        key = exchange.key
        if key is not None:
            exchange.log.key = key.name
            if key.scope == "metrics" and template not in _FOR_METRICS:
                raise RequestRefused(403, "this key is for the metrics only", code="unauthorized")
        self.activity.enter(exchange.owner)
        exchange.counted = True

    async def _fail(self, exchange: RequestExchange, error: RametError | RequestRefused) -> None:
        if exchange.started:
            # A stream reports errors itself. The head is sent already, so all that is left is to abort the connection.
            raise error
        if isinstance(error, RequestRefused):
            status = error.status
            headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in error.headers.items()]
        else:
            error = self.explain(exchange, error)
            status, headers = errors.status_of(error), []
        exchange.log.error = error.code
        headers += errors.retry_headers(status)
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await exchange.respond(status, [*JSON, *headers], errors.error_body(error))

    def explain(self, exchange: RequestExchange, error: RametError) -> RametError:
        """Add how a sandbox ended, from the records: an engine that was started after it knows nothing about it.

        An operator is told whose sandbox it is instead, which it sees in its list.
        """
        if not isinstance(error, SandboxClosed) or "cause" in error.details or exchange.log.sandbox is None:
            return error
        ended = self.records.ended_cause(exchange.owner, exchange.log.sandbox)
        if ended is None:
            row = exchange.link.rows.get(exchange.log.sandbox) if exchange.operates else None
            if row is None or row.owner == exchange.owner:
                return error
            whose = f"it belongs to the key {self.records.keys.name_of(row.owner)!r}"
            hint = f"{whose}; an operator's key can only list, inspect and end it"
            return SandboxClosed(error.message, hint=hint, details=error.details)
        return SandboxClosed(ended.message, details={"cause": ended.cause, "ended_ms": ended.ended_ms})


class Found:
    """A path that exists, with its parameters and its handler for each method."""

    __slots__ = ("handlers", "parameters", "template")

    def __init__(self, template: str, handlers: dict[str, Handler], parameters: dict[str, str]) -> None:
        self.template = template
        self.handlers = handlers
        self.parameters = parameters

    @property
    def allowed(self) -> str:
        return ", ".join(sorted(self.handlers))


class Router:
    """Finds routes by the segments of a path. A name in braces matches any one segment that no literal matches."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for method, template, handler in routes:
            node = self._root
            names = []
            for segment in template.strip("/").split("/"):
                if segment.startswith("{"):
                    names.append(segment.strip("{}"))
                    node.any = node = node.any or _Node()
                else:
                    node = node.fixed.setdefault(segment, _Node())
            if node.template not in ("", template):
                raise ValueError(f"{template} and {node.template} are the same path")
            node.template, node.names = template, tuple(names)
            if node.handlers.setdefault(method, handler) is not handler:
                raise ValueError(f"two handlers for {method} {template}")

    def find(self, path: str) -> Found | None:
        node, values = self._root, []
        for segment in path[1:].split("/"):
            following = node.fixed.get(segment)
            if following is None:
                if node.any is None or not segment:
                    return None
                following = node.any
                values.append(segment)
            node = following
        if not node.template:
            return None
        return Found(node.template, node.handlers, dict(zip(node.names, values, strict=True)))


class _Node:
    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.template = ""
        self.names: tuple[str, ...] = ()
        self.handlers: dict[str, Handler] = {}


def _without_region(path: str) -> str:
    """Map ``/r/{region}/v1/...`` to ``/v1/...``."""
    _, slash, rest = path[3:].partition("/")
    return slash + rest if slash else path


def _in_one_line(error: Exception) -> str:
    """The kind of an error and where it was raised. Its message may hold data of a user, so it is left out."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return type(error).__name__
    return f"{type(error).__name__} at {traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
