"""Facts that a request carries through the application."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import Scope

_OWNER, _REQUEST_ID = "ramet.owner", "ramet.request_id"


class GatewayClientDisconnected(Exception):
    """Raised when the client has disconnected."""


def introduce(scope: Scope, owner: str | None, request_id: str) -> None:
    """Note the facts about a request. ``owner`` is None for a public path."""
    scope[_OWNER], scope[_REQUEST_ID] = owner, request_id


def owner_of(request: Request) -> str:
    owner: str = request.scope[_OWNER]
    return owner


def request_id_of(request: Request) -> str:
    request_id: str = request.scope[_REQUEST_ID]
    return request_id
