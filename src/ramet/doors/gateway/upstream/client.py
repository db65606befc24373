"""The HTTP client for the model: any server that speaks the Messages API with ordinary tools.

Nothing that comes from it is trusted. A failure becomes an ``ApiError``: the upstream's own errors keep their status,
and everything outside of the API (a proxy's page, a broken stream, silence) gets an error that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import httpx

from ramet.doors.gateway.encoding import to_json
from ramet.doors.gateway.errors import ApiError, invalid
from ramet.doors.gateway.settings import GatewaySettings
from ramet.doors.gateway.upstream.credentials import UpstreamCaller
from ramet.doors.gateway.upstream.errors import UpstreamErrors, json_object, shown
from ramet.doors.gateway.upstream.sse import EventReader, EventTooLong
from ramet.errors import InvalidArgument

MESSAGES = "/v1/messages"
_ANSWER_BYTES_AT_MOST = 64 << 20
_CONNECTIONS = 1000
_KEPT_CONNECTIONS = 200
_DRAIN_SECONDS = 0.05
# Headers of the upstream's answer that the client gets: when to retry, and how much is left.
_PASSED_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry", "anthropic-organization-id")
_PASSED_PREFIX = "anthropic-ratelimit-"
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


@dataclass
class Said:
    """Facts from the upstream's answer besides its body."""

    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PassedOn:
    status: int
    headers: dict[str, str]
    media_type: str
    body: bytes


class Upstream:
    """Owns the connections. Keys are sent in headers and appear nowhere else, neither in a log nor in an error."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._url = base_url(settings.upstream)
        self.errors = UpstreamErrors(urlsplit(self._url).netloc.rpartition("@")[2], settings.upstream_key)
        self._client = httpx.AsyncClient(
            limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_KEPT_CONNECTIONS),
            # Accept no cookies: a cookie set for one client must not be sent with the requests of another.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            # A proxy from the environment is for other machines, and must not be used for this one.
            trust_env=urlsplit(self._url).hostname not in _LOOPBACK,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def create(self, body: Mapping[str, Any], caller: UpstreamCaller, said: Said) -> dict[str, Any]:
        """Request one whole message. Raises ApiError."""
        async with self._request("POST", MESSAGES, caller, body, self._settings.answer_seconds) as response:
            await self._check(response, said)
            return self._message(await _read(response))

    async def stream(
        self, body: Mapping[str, Any], caller: UpstreamCaller, said: Said
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Stream the events of one message. Raises ApiError, also for an error in the stream."""
        async with self._request("POST", MESSAGES, caller, body, self._settings.stall_seconds) as response:
            await self._check(response, said)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "application/json":
                # The upstream does not stream, and has sent the whole message.
                for event in whole_as_events(self._message(await _read(response))):
                    yield event
                return
            if kind != "text/event-stream":
                raise self.errors.broken(f"answered with {kind or 'no content type'} instead of an event stream")
            async for event in self._events(response):
                yield event

    async def pass_on(
        self, method: str, path: str, caller: UpstreamCaller, body: Mapping[str, Any] | None = None
    ) -> PassedOn:
        """Send a request whose answer the client gets unchanged. Raises ApiError."""
        said = Said()
        async with self._request(method, path, caller, body, self._settings.answer_seconds) as response:
            await self._check(response, said)
            media_type = response.headers.get("content-type", "")
            media_type = media_type if media_type.isascii() and media_type else "application/json"
            return PassedOn(response.status_code, said.headers, media_type, await _read(response))

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        caller: UpstreamCaller,
        body: Mapping[str, Any] | None,
        silence_seconds: float,
    ) -> AsyncIterator[httpx.Response]:
        content = None
        given = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "ramet-gateway"}
        given.update(caller.headers)
        if body is not None:
            content = to_json(body)
            given["content-type"] = "application/json"
        url = self._url + path + (f"?{caller.query}" if caller.query else "")
        timeout = httpx.Timeout(silence_seconds, connect=self._settings.connect_seconds)
        try:
            async with self._client.stream(method, url, headers=given, content=content, timeout=timeout) as response:
                yield response
        except httpx.ConnectTimeout:
            raise self.errors.broken("does not answer: no connection in time") from None
        except httpx.ConnectError as error:
            raise self.errors.broken(f"cannot be reached: {_reason(error)}") from None
        except httpx.TimeoutException:
            raise self.errors.broken(f"sent nothing for {silence_seconds:g} seconds", 504) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self.errors.broken(f"closed the connection in the middle of its answer: {_reason(error)}") from None
        except httpx.InvalidURL:
            raise invalid("the path or query of this request cannot be passed on") from None

    async def _check(self, response: httpx.Response, said: Said) -> None:
        said.headers = _passed_headers(response)
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            # We asked for no encoding, and a few bytes of nested encodings can unpack to more than fits in memory.
            raise self.errors.broken(f"answered in the encoding {encoding[:60]!r}, which it was not asked for")
        if response.status_code < 300:
            return
        if response.status_code < 400:
            raise self.errors.broken(f"answered {response.status_code}, a redirect: name the place that it leads to")
        raise self.errors.refusal(response.status_code, await _read(response), said.headers)

    async def _events(self, response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        reader, pieces, size = EventReader(), response.aiter_raw(), 0
        try:
            async for piece in pieces:
                size += len(piece)
                if size > _ANSWER_BYTES_AT_MOST:
                    raise self.errors.broken(f"streams without end: {_ANSWER_BYTES_AT_MOST} bytes, and no answer")
                for event in reader.feed(piece):
                    read = self._event(event.name, event.data)
                    if read is not None and read["type"] == "message_stop":
                        await _drain(pieces)
                        yield read
                        return
                    if read is not None:
                        yield read
        except EventTooLong:
            raise self.errors.broken("sent an endless line") from None
        for event in reader.end():
            if (read := self._event(event.name, event.data)) is not None:
                yield read

    def _event(self, name: str, data: str) -> dict[str, Any] | None:
        if name == "ping" or data == "[DONE]":
            return None
        event = json_object(data.encode("utf-8", "replace"))
        if event is None:
            raise self.errors.broken(f"sent an event that is not JSON: {shown(data.encode('utf-8', 'replace'))}")
        kind = event.setdefault("type", name)
        if kind == "error" or name == "error":
            raise self.errors.stream_error(event)
        return None if kind == "ping" else event

    def _message(self, body: bytes) -> dict[str, Any]:
        message = json_object(body)
        if message is None:
            raise self.errors.broken(f"sent something that is not JSON: {shown(body)}")
        if not isinstance(message.get("content"), list):
            raise self.errors.broken("sent an answer without content")
        return message


def whole_as_events(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A whole message as the events of a stream."""
    start = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(message["content"]):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_stop", "index": index})
    delta = {name: value for name, value in message.items() if name.startswith("stop_")}
    usage = message.get("usage")
    events.append({"type": "message_delta", "delta": delta, "usage": usage if isinstance(usage, dict) else {}})
    events.append({"type": "message_stop"})
    return events


def base_url(text: str) -> str:
    """The base URL for all paths, from what a person wrote. Raises InvalidArgument."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise InvalidArgument(
            f"upstream must be the URL of a server, got {text!r:.100}",
            hint="for example https://api.anthropic.com or http://127.0.0.1:8000",
            details={"argument": "upstream"},
        )
    return text.rstrip("/").removesuffix("/v1")


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Read to the end of a stream that should be empty, so that its connection can be used again. Bounded in time."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in pieces:
                pass
    except (TimeoutError, httpx.HTTPError, httpx.StreamError):
        pass  # the answer is complete without it


async def _read(response: httpx.Response) -> bytes:
    pieces, size = [], 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > _ANSWER_BYTES_AT_MOST:
            raise ApiError(502, f"the upstream's answer is longer than {_ANSWER_BYTES_AT_MOST} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _passed_headers(response: httpx.Response) -> dict[str, str]:
    found = {
        name: value
        for name, value in response.headers.items()
        if name in _PASSED_HEADERS or name.startswith(_PASSED_PREFIX)
    }
    if request_id := response.headers.get("request-id"):
        found["ramet-upstream-request-id"] = request_id
    return {name: value for name, value in found.items() if value.isascii()}


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
