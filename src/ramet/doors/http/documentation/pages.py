"""Serves the OpenAPI document, and a page that lists every route with a form to try it."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.documentation.openapi import document_bytes
from ramet.doors.http.requests.errors import Headers
from ramet.doors.http.requests.exchange import JSON, RequestExchange, Route

_PAGE = api.answer("A page.", api.text(), kind="text/html")
_INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


@cache
def page() -> bytes:
    return resources.files("ramet.doors.http.documentation").joinpath("page.html").read_bytes()


@cache
def page_headers() -> Headers:
    """Headers that let the page run its own script, use its own style and call its own server, and nothing else."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page()):
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode("ascii")
        hashes[kind.decode("ascii")].append(f"'sha256-{digest}'")
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy.encode("ascii")),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
    ]


@api.operation(
    "page",
    "server",
    "The page that lists these routes, with a form to try each",
    {200: _PAGE},
    errors=(),
    public=True,
)
async def _page(exchange: RequestExchange) -> None:
    await exchange.respond(200, page_headers(), page())


@api.operation("docs", "server", "The same page", {200: _PAGE}, errors=(), public=True)
async def _docs(exchange: RequestExchange) -> None:
    await _page(exchange)


@api.operation(
    "openapi", "server", "This document", {200: api.answer("OpenAPI 3.1.", api.mapping())}, errors=(), public=True
)
async def _document(exchange: RequestExchange) -> None:
    await exchange.respond(200, [*JSON, (b"cache-control", b"no-cache")], document_bytes())


ROUTES: list[Route] = [
    ("GET", "/", _page),
    ("GET", "/docs", _docs),
    ("GET", "/v1/openapi.json", _document),
]
