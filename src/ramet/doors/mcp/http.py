"""MCP over streamable HTTP: many clients, each with sessions of its own."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvicorn
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramet import InvalidArgument
from ramet.doors.mcp.server import make_server
from ramet.doors.mcp.session_store import ManySessions
from ramet.doors.mcp.sessions import SandboxSettings
from ramet.web.listener import url_of

PATH = "/mcp"
_BODY_BYTES = 64 * 1024 * 1024  # the largest request: files come as base64 in JSON
_SESSIONS = 1000
_GRACE_SECONDS = 5  # for requests in progress when the server is told to stop
# Values of Sec-Fetch-Site for requests that neither a page of this server nor the user has made.
_FROM_OTHER_SITES = frozenset(("cross-site", "same-site"))
_USUAL_PORTS = {"http": ":80", "https": ":443"}
_HOST_PORT = re.compile(r":[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Where to listen, and who may connect."""

    host: str = "127.0.0.1"
    port: int = 7090
    keys: tuple[str, ...] = ()  # empty: everybody who can connect; allowed on loopback addresses only
    allowed_hosts: tuple[str, ...] = ()  # names of this server besides those of loopback
    idle_seconds: float = 1800

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def serve_http(settings: HttpSettings, sandboxes: SandboxSettings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. Calls ``announce`` with the URL as soon as clients can connect.

    Raises InvalidArgument if the address cannot be used, or can be reached by others without a key.
    """
    if not settings.loopback and not settings.keys:
        raise InvalidArgument(
            f"host {settings.host} can be reached from other machines, and no key protects it",
            hint="export RAMET_MCP_KEY=$(openssl rand -hex 32) and add --api-key-env RAMET_MCP_KEY",
        )
    with _listener(settings) as listener:
        config = uvicorn.Config(
            make_app(settings, sandboxes),
            lifespan="on",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        # uvicorn catches both signals while it serves, stops, and then raises them again. With these handlers the
        # process then exits with 0: to be told to stop is not a failure. Set before `announce`: a client that has read
        # the URL may send a signal before uvicorn has its own handlers.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(0))
        announce(url_of(settings.host, listener.getsockname()[1]) + PATH)
        uvicorn.Server(config).run(sockets=[listener])


def _listener(settings: HttpSettings) -> socket.socket:
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise InvalidArgument(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}") from error


def make_app(settings: HttpSettings, sandboxes: SandboxSettings) -> Starlette:
    sessions = ManySessions(sandboxes, settings.idle_seconds)
    manager = StreamableHTTPSessionManager(
        make_server(sessions.running, prefers_handshake=True, reach=sandboxes.reach),
        security_settings=_security(settings),
        session_idle_timeout=settings.idle_seconds,
        max_request_body_size=_BODY_BYTES,
        max_sessions=_SESSIONS,
    )
    endpoint: ASGIApp = _Watched(manager.handle_request, sessions)
    if _names_are_known(settings):
        endpoint = _OwnPages(endpoint, settings.allowed_hosts)
    middleware = []
    if settings.keys:
        endpoint = RequireAuthMiddleware(endpoint, required_scopes=[])
        middleware.append(Middleware(AuthenticationMiddleware, backend=BearerAuthBackend(_Keys(settings.keys))))
    return Starlette(routes=[Route(PATH, endpoint=endpoint)], middleware=middleware, lifespan=lambda _: manager.run())


def _security(settings: HttpSettings) -> TransportSecuritySettings:
    """Protection against web pages: a browser sends the host that it believes to ask, and the page that made it ask.

    A server for other machines cannot know all its names. There the key protects it: a page does not have one.
    """
    names = ["127.0.0.1", "localhost", "[::1]", *settings.allowed_hosts]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=_names_are_known(settings),
        allowed_hosts=[form for name in names for form in (name, f"{name}:*")],
        # Any port: only the Host header of a request tells which one is ours. _OwnPages compares the two.
        allowed_origins=[
            form
            for name in names
            for scheme in ("http", "https")
            for form in (f"{scheme}://{name}", f"{scheme}://{name}:*")
        ],
    )


def _names_are_known(settings: HttpSettings) -> bool:
    return settings.loopback or bool(settings.allowed_hosts)


class _OwnPages:
    """Refuses requests of web pages whose origin is not the address that they ask.

    Other programs of this machine serve pages on loopback, too, and a sandbox may be their author (``expose``).
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        # Requests for a picture or a script carry no Origin, but Sec-Fetch-Site says that another site made them.
        foreign = any(site in _FROM_OTHER_SITES for site in headers.getlist("sec-fetch-site"))
        origins, hosts = headers.getlist("origin"), headers.getlist("host")
        if foreign or any(len(hosts) != 1 or not self._is_own(origin, hosts[0]) for origin in origins):
            await PlainTextResponse("requests from other web pages are refused", 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_own(self, origin: str, host: str) -> bool:
        scheme, _, authority = origin.lower().partition("://")
        # This server speaks no TLS. An https origin is ours only if a proxy in front of it serves an allowed name.
        if scheme == "https" and _HOST_PORT.sub("", host.lower()) not in self._allowed_hosts:
            return False
        usual = _USUAL_PORTS.get(scheme)
        return usual is not None and authority.removesuffix(usual) == host.lower().removesuffix(usual)


class _Keys:
    """Verifies the keys that clients present as bearer tokens. Keeps digests only."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    async def verify_token(self, token: str) -> AccessToken | None:
        presented = _digest(token)
        # Compares with all of them, in constant time: the time of an answer says nothing about a key.
        matching = [known for known in self._digests if hmac.compare_digest(known, presented)]
        if not matching:
            return None
        return AccessToken(token=token, client_id=matching[0].hex()[:16], scopes=[])


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class _Watched:
    """Reports to the sessions which of them have a request in progress, and which were ended by their client."""

    def __init__(self, app: ASGIApp, sessions: ManySessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session_id = next((value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER), None)
        if session_id is None:
            await self._app(scope, receive, send)
            return
        status = 0

        async def watching(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._sessions.request(session_id):
            await self._app(scope, receive, watching)
        # The SDK has checked the key and ended its side. Only then: a DELETE with another key must end nothing.
        if scope["method"] == "DELETE" and status == 200:
            await self._sessions.end(session_id)


_HEADER = b"mcp-session-id"
