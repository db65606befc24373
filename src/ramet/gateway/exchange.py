"""What a request carries through the application besides itself."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import Scope

_OWNER, _REQUEST_ID = "ramet.owner", "ramet.request_id"


class ClientGone(Exception):
    """Nobody is there to be answered."""


def introduce(scope: Scope, owner: str | None, request_id: str) -> None:
    """``owner``: None for a path that is open to all."""
    scope[_OWNER], scope[_REQUEST_ID] = owner, request_id


def owner_of(request: Request) -> str:
    owner: str = request.scope[_OWNER]
    return owner


def request_id_of(request: Request) -> str:
    request_id: str = request.scope[_REQUEST_ID]
    return request_id
