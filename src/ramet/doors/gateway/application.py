"""Routes a request: identifies the caller, finds the handler, and turns a failure into an answer."""

from __future__ import annotations

import time

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Scope, Send

from ramet.doors.gateway.access import ClientAccess
from ramet.doors.gateway.code_side import CodeSide
from ramet.doors.gateway.containers import routes as container_routes
from ramet.doors.gateway.errors import ApiError, invalid, new_request_id, not_found
from ramet.doors.gateway.exchange import GatewayClientDisconnected, introduce, owner_of
from ramet.doors.gateway.files import routes as file_routes
from ramet.doors.gateway.metrics import GatewayMetrics
from ramet.doors.gateway.services import GatewayLog, NoLog, Services
from ramet.doors.gateway.settings import GatewaySettings
from ramet.doors.gateway.turns.messages import Messages
from ramet.doors.gateway.turns.threads import Threads
from ramet.doors.gateway.upstream import passthrough
from ramet.doors.gateway.upstream.client import Upstream
from ramet.errors import RametError
from ramet.web.metrics import CONTENT_TYPE

# The status in the log of a request whose client disconnected before the answer; nginx uses the same number.
_CLIENT_GONE = 499
_PUBLIC = frozenset(("/healthz",))
_KNOWN = "/v1/messages, /v1/messages/count_tokens, /v1/models, /v1/files and /v1/containers"


class GatewayApplication:
    """The ASGI application. Owns everything that answers requests; ``close`` ends it."""

    def __init__(self, settings: GatewaySettings, rooms: CodeSide, log: GatewayLog | None = None) -> None:
        self.services = Services(
            settings=settings,
            upstream=Upstream(settings),
            rooms=rooms,
            threads=Threads(settings.thread_seconds),
            metrics=GatewayMetrics(),
            log=log or NoLog(),
        )
        self._access = ClientAccess(settings.keys)
        self._messages = Messages(self.services)
        self._routes = [
            Route("/v1/messages", self._messages, methods=["POST"]),
            *passthrough.routes(self.services),
            *file_routes.routes(rooms, owner_of),
            *container_routes.routes(rooms, owner_of),
            Route("/metrics", self._exposition, methods=["GET"]),
            Route("/healthz", self._health, methods=["GET"]),
        ]

    async def close(self) -> None:
        """Abort what is being answered, and close all containers."""
        try:
            await self.services.end_tasks()
        finally:
            try:
                await self.services.upstream.close()
            finally:
                await self.services.rooms.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"a connection of type {scope['type']!r}")
        await _Exchange(self, scope, receive, send).run()

    def find(self, scope: Scope) -> tuple[Route | None, list[str]]:
        """The route of a request, or the methods that its path has instead."""
        allowed: list[str] = []
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return route, []
            if match is Match.PARTIAL:
                allowed += sorted(route.methods or ())
        return None, allowed

    def owner(self, request: Request) -> str:
        return self._access.owner(request.headers)

    async def _exposition(self, request: Request) -> Response:
        return Response(self.services.metrics.exposition(), media_type=CONTENT_TYPE)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})


class _Exchange:
    """One request and its answer."""

    def __init__(self, application: GatewayApplication, scope: Scope, receive: Receive, send: Send) -> None:
        self._application = application
        self._scope, self._receive, self._send_on = scope, receive, send
        self._began = time.perf_counter()
        self._request_id = new_request_id()
        self._route = "unmatched"  # a template, never a path
        self._owner: str | None = None
        self._status = 0

    async def run(self) -> None:
        try:
            await self._answer()
        except GatewayClientDisconnected:
            self._status = _CLIENT_GONE
        except ApiError as error:
            await self._fail(error)
        except HTTPException as error:
            await self._fail(ApiError(error.status_code, str(error.detail)))
        except RametError as error:
            self._application.services.failed(self._route, error)
            await self._fail(ApiError(500, f"the gateway could not use a sandbox: {error.message}"))
        except RecursionError:
            await self._fail(invalid("the request is nested too deeply"))
        except Exception as error:
            self._application.services.failed(self._route, error)
            if self._status:
                raise  # uvicorn aborts the connection, so that the client does not take half an answer for a whole one
            await self._fail(ApiError(500, "the gateway failed at this request"))
        finally:
            self._log()

    async def _answer(self) -> None:
        scope, application = self._scope, self._application
        request = Request(scope)
        if scope["path"] not in _PUBLIC:
            self._owner = application.owner(request)  # first: only callers with a key learn which paths exist
        introduce(scope, self._owner, self._request_id)
        route, allowed = application.find(scope)
        if route is not None:
            self._route = route.path
            await route.app(scope, self._receive, self._send)
        elif allowed:
            raise ApiError(405, f"{scope['method'][:20]} is not allowed here", headers={"allow": ", ".join(allowed)})
        else:
            path = scope["path"][:200]
            raise not_found(f"this gateway has no {path}; it has {_KNOWN}")

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message["headers"] = [*message["headers"], (b"request-id", self._request_id.encode())]
        await self._send_on(message)

    async def _fail(self, error: ApiError) -> None:
        if self._status:
            # A stream reports errors itself. The head is sent already, so all that is left is to abort the connection.
            raise error
        headers = {**error.headers, "content-type": "application/json"}
        if error.status == 401:
            headers["www-authenticate"] = "Bearer"
        answer = Response(error.encoded(self._request_id), error.status, headers)
        await answer(self._scope, self._receive, self._send)

    def _log(self) -> None:
        services, seconds = self._application.services, time.perf_counter() - self._began
        services.metrics.request_ended(self._scope["method"], self._route, self._status, seconds)
        services.log.event(
            "request",
            method=self._scope["method"][:20],
            route=self._route,
            status=self._status,
            ms=round(seconds * 1000, 1),
            owner=None if self._owner is None else self._owner[:12],
            request=self._request_id,
        )
