"""Requests that the gateway passes on to the upstream: counts of tokens, lists of models."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ramet.doors.gateway.errors import not_found
from ramet.doors.gateway.exchange import owner_of
from ramet.doors.gateway.requests.declarations import upstream_choice
from ramet.doors.gateway.requests.request import read_body, read_request
from ramet.doors.gateway.services import Services
from ramet.doors.gateway.upstream.cell_texts import CellTexts
from ramet.doors.gateway.upstream.credentials import UpstreamCaller, upstream_headers
from ramet.doors.gateway.upstream.inlining import inlined
from ramet.doors.gateway.upstream.translation import translate

_COUNT = "/v1/messages/count_tokens"


def routes(services: Services) -> list[Route]:
    async def count_tokens(request: Request) -> Response:
        """Count the tokens of the upstream's request, which has ordinary tools in place of code execution."""
        owner = owner_of(request)
        body = await read_body(request, services.settings.body_bytes)
        asked = read_request(body, owner, services.threads, services.surroundings)
        texts = CellTexts(services.rooms.files, owner)
        messages = await inlined(asked.messages, services.rooms.files, owner)
        given = {**asked.fields, "messages": translate(messages, texts.tell, texts.tell_upload)}
        if asked.tools.for_upstream:
            given["tools"] = list(asked.tools.for_upstream)
            if (choice := upstream_choice(asked.tool_choice, asked.tools, first=True)) is not None:
                given["tool_choice"] = choice
        return await _passed_on(request, "POST", _COUNT, given)

    async def models(request: Request) -> Response:
        # Some servers ignore what follows a semicolon in a path segment.
        if {".", ".."} & {step.partition(";")[0] for step in request.scope["path"].split("/")}:
            raise not_found("no such model")  # such a path leads elsewhere, where the gateway's key may open more
        path: bytes = request.scope["raw_path"]  # still percent-encoded: names of models have slashes
        return await _passed_on(request, "GET", path.partition(b"?")[0].decode("latin-1"), None)

    async def _passed_on(request: Request, method: str, path: str, body: dict[str, object] | None) -> Response:
        caller = UpstreamCaller(upstream_headers(services.settings, request.headers), request.url.query)
        answer = await services.upstream.pass_on(method, path, caller, body)
        return Response(answer.body, answer.status, answer.headers, media_type=answer.media_type)

    return [
        Route(_COUNT, count_tokens, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{model_id:path}", models, methods=["GET"]),
    ]
