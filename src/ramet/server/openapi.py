"""The description of every route, as the server hands it out and as its tests check it."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

_METHODS = ("get", "head", "post", "put", "delete")


@cache
def document_bytes() -> bytes:
    return resources.files("ramet.server").joinpath("openapi.json").read_bytes()


@cache
def document() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(document_bytes())
    return parsed


def described_routes() -> set[tuple[str, str]]:
    """Method and path of everything the document describes."""
    return {
        (method.upper(), path)
        for path, operations in document()["paths"].items()
        for method in operations
        if method in _METHODS
    }
