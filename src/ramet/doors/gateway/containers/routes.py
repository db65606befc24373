"""`/v1/containers`: list, describe, fork, undo in and delete containers."""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ramet.doors.gateway.code_side import CodeSide
from ramet.doors.gateway.containers.descriptions import container_object, history_object, undone_object
from ramet.doors.gateway.encoding import to_json
from ramet.doors.gateway.errors import ApiError, invalid
from ramet.doors.gateway.files.routes import OwnerOf

_BODY_BYTES = 64 * 1024


def routes(rooms: CodeSide, owner_of: OwnerOf) -> list[Route]:
    """All routes of containers, for the application to mount."""
    containers = rooms.containers

    async def list_containers(request: Request) -> Response:
        found = containers.list(owner_of(request))
        return _json({"data": [container_object(container) for container in found]})

    async def describe(request: Request) -> Response:
        return _json(await containers.describe(owner_of(request), request.path_params["container_id"]))

    async def fork(request: Request) -> Response:
        owner, container_id = owner_of(request), request.path_params["container_id"]
        children = await containers.fork(owner, container_id, await _count(request))
        return _json({"data": [container_object(child) for child in children]})

    async def history(request: Request) -> Response:
        return _json(history_object(await containers.history(owner_of(request), request.path_params["container_id"])))

    async def undo(request: Request) -> Response:
        owner, container_id = owner_of(request), request.path_params["container_id"]
        return _json(undone_object(container_id, await containers.undo(owner, container_id, await _count(request))))

    async def delete(request: Request) -> Response:
        container_id = request.path_params["container_id"]
        await containers.delete(owner_of(request), container_id)
        return _json({"id": container_id, "type": "container_deleted"})

    return [
        Route("/v1/containers", list_containers, methods=["GET"]),
        Route("/v1/containers/{container_id}", describe, methods=["GET"]),
        Route("/v1/containers/{container_id}", delete, methods=["DELETE"]),
        Route("/v1/containers/{container_id}/fork", fork, methods=["POST"]),
        Route("/v1/containers/{container_id}/history", history, methods=["GET"]),
        Route("/v1/containers/{container_id}/undo", undo, methods=["POST"]),
    ]


def _json(value: object) -> Response:
    """A JSON answer. It may hold any characters that code and models wrote."""
    return Response(to_json(value), media_type="application/json")


async def _count(request: Request) -> int:
    """``n`` of the body; both may be missing."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _BODY_BYTES:
            raise ApiError(413, f"the body is longer than {_BODY_BYTES} bytes")
    if not body.strip():
        return 1
    try:
        given = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise invalid("the body is not JSON") from None
    n = given.get("n", 1) if isinstance(given, dict) else None
    if not isinstance(n, int) or isinstance(n, bool):
        raise invalid("n: must be a whole number in a JSON object")
    return n
