"""The description of every route: made from what stands beside the handlers, and handed out by the server."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from ramet.doors.http.documentation.openapi_parts import Operation, description_of, parameter
from ramet.doors.http.documentation.openapi_schemas import SCHEMAS
from ramet.doors.http.documentation.openapi_shared import ERRORS, HEADERS, PARAMETERS, SECURITY_SCHEMES, TAGS

_METHODS = ("get", "head", "post", "put", "delete")
_IN_PATHS = {shared["name"]: name for name, shared in PARAMETERS.items() if shared["in"] == "path"}


@cache
def document_bytes() -> bytes:
    return json.dumps(document(), indent=2, ensure_ascii=False).encode()


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1. Made when it is first asked for: a server starts no later for it."""
    # Not above: one of the routes hands this document out.
    from ramet.doors.http.exposed import requests
    from ramet.doors.http.routes.table import ROUTES

    paths: dict[str, dict[str, Any]] = {}
    described = [(method, path, description_of(handler)) for method, path, handler in ROUTES]
    for method, path, operation in [*described, *requests.DESCRIBED]:
        paths.setdefault(path, {})[method.lower()] = _described(path, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ramet",
            "version": "1",
            "description": "Stateful Python sandboxes over HTTP. Every path may also come with a prefix `/r/{region}`, "
            'which means nothing here. Errors are `{"error", "code", "hint", "details"}`. Unknown fields of bodies and '
            "queries are refused.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This server."}],
        "security": [{"key": []}, {}],
        "tags": [{"name": name, "description": help} for name, help in TAGS.items()],
        "paths": paths,
        "components": {
            "securitySchemes": SECURITY_SCHEMES,
            "parameters": PARAMETERS,
            "headers": HEADERS,
            "responses": dict(ERRORS.values()),
            "schemas": SCHEMAS,
        },
    }


def described_routes() -> set[tuple[str, str]]:
    """Method and path of everything the document describes."""
    return {
        (method.upper(), path)
        for path, operations in document()["paths"].items()
        for method in operations
        if method in _METHODS
    }


def _described(path: str, operation: Operation) -> dict[str, Any]:
    shared = [parameter(_IN_PATHS[name]) for name in re.findall(r"{(\w+)}", path) if name in _IN_PATHS]
    parameters = [*shared, *operation.parameters]
    answers = {str(status): answer for status, answer in operation.answers.items()}
    errors = {str(status): {"$ref": f"#/components/responses/{ERRORS[status][0]}"} for status in operation.errors}
    return {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        **({"description": operation.help} if operation.help else {}),
        **({"parameters": parameters} if parameters else {}),
        **({} if operation.body is None else {"requestBody": operation.body}),
        "responses": {**answers, **errors},
        **({"security": [{}]} if operation.public else {}),
    }
