"""`POST /v1/messages`: begins a turn, or joins one in progress, and sends its answer to the client."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ramet.doors.gateway.encoding import to_json
from ramet.doors.gateway.exchange import GatewayClientDisconnected, owner_of, request_id_of
from ramet.doors.gateway.requests.request import MessagesRequest, read_body, read_request
from ramet.doors.gateway.services import Services
from ramet.doors.gateway.turns.cells import tokens_kept_out
from ramet.doors.gateway.turns.continuations import Answered, Continuations
from ramet.doors.gateway.turns.events import HEADERS, client_gone, first_of, send_events
from ramet.doors.gateway.upstream.credentials import UpstreamCaller, upstream_headers

KEPT_OUT_HEADER = "ramet-tokens-kept-out"


class Messages:
    """Answers requests for messages. Owns the turns that outlive a request."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._continuations = Continuations(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        settings = self._services.settings
        body = await read_body(request, settings.body_bytes)
        owner = owner_of(request)
        asked = read_request(body, owner, self._services.threads, self._services.surroundings)
        caller = UpstreamCaller(upstream_headers(settings, request.headers), request.url.query)
        turn, task = self._begin(asked, owner, caller)
        gone = asyncio.create_task(client_gone(receive))
        try:
            if asked.stream:
                await self._stream(turn, asked, request_id_of(request), gone, send)
            else:
                await self._whole(turn, asked, gone, scope, receive, send)
        finally:
            gone.cancel()
            if task is not None:
                task.cancel()  # no other request can join this turn

    def _begin(
        self, asked: MessagesRequest, owner: str, caller: UpstreamCaller
    ) -> tuple[Answered, asyncio.Task[Any] | None]:
        """The answer, and the task of a turn that only this request uses."""
        if asked.calls.cells:
            return self._continuations.join(asked, owner, caller), None
        return self._continuations.begin(asked, owner, caller)

    async def _stream(
        self, turn: Answered, asked: MessagesRequest, request_id: str, gone: asyncio.Task[None], send: Send
    ) -> None:
        recording = turn.message.recording
        # Wait for the first event, because until then an error can still have its own status.
        await first_of(recording.beyond(0), gone)
        if recording.error is not None and not recording.events:
            raise recording.error
        headers = [
            (name.encode(), value.encode("latin-1")) for name, value in (HEADERS | _headers(turn, asked)).items()
        ]
        if not gone.done():
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        if not await send_events(send, recording, gone, request_id, self._services.settings.ping_seconds):
            raise GatewayClientDisconnected

    async def _whole(
        self,
        turn: Answered,
        asked: MessagesRequest,
        gone: asyncio.Task[None],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        recording = turn.message.recording
        await first_of(recording.ended(), gone)
        if not recording.over:
            raise GatewayClientDisconnected
        if recording.error is not None:
            raise recording.error
        body = to_json(turn.message.whole())
        await Response(body, 200, _headers(turn, asked), "application/json")(scope, receive, send)


def _headers(turn: Answered, asked: MessagesRequest) -> dict[str, str]:
    headers = dict(turn.said.headers)
    if asked.tools.version is not None or asked.calls.answers:
        headers[KEPT_OUT_HEADER] = str(tokens_kept_out(asked))
    return headers
