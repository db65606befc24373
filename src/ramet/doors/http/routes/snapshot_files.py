"""Snapshots as files over HTTP: out of a server, and into one. They pass through piece by piece."""

from __future__ import annotations

from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.requests.disconnects import ends_with_client
from ramet.doors.http.requests.errors import Headers
from ramet.doors.http.requests.exchange import RequestExchange, Route
from ramet.doors.http.requests.json_answers import answer_json
from ramet.doors.http.requests.queries import QueryFields
from ramet.doors.http.routes import creation
from ramet.doors.http.routes.files import final_frame, send_body
from ramet.protocol import calls, fields
from ramet.protocol.frames import encode
from ramet.protocol.requests.operations import ImportOptions
from ramet.protocol.requests.sandboxes import SandboxOptions

_HEADERS: Headers = [
    (b"content-type", b"application/octet-stream"),
    (b"content-disposition", b"attachment"),
    (b"x-content-type-options", b"nosniff"),
]


@api.operation(
    "exportSnapshot",
    "forks",
    "A snapshot as one file",
    {200: api.answer("The file, as it is read.", api.BINARY, kind=api.BYTES)},
    help="Its length is not known before. A connection that breaks before the end means that the file is not whole.",
    errors=(400, 401, 403, 404, 413, 429, 503),
)
async def export(exchange: RequestExchange, snapshot_id: str) -> None:
    QueryFields(exchange.scope["query_string"]).done()
    async with exchange.link.call() as call:
        await call.send(encode(calls.EXPORT, {"snapshot": snapshot_id, "owner": exchange.owner}))
        with ends_with_client(exchange, call):
            async for frame in call.frames():
                if frame.kind == calls.ERROR:
                    # Before the first piece it is answered; later the connection is aborted, which shows a short file.
                    raise calls.read_error(frame.header)
                if not exchange.started:
                    await exchange.start(200, _HEADERS)
                if frame.kind == calls.CHUNK:
                    await exchange.write(frame.blob, more=True)
    await exchange.write(b"", more=False)


@api.operation(
    "importSnapshot",
    "forks",
    "A snapshot from such a file",
    {201: api.answer("The snapshot, which is yours.", api.record({"id": api.text()}), {"id": api.SNAPSHOT_ID})},
    help="The file decides on nothing: owner, limits and network of its sandboxes are yours.",
    body=api.body(api.BINARY, kind=api.BYTES),
    parameters=api.options_query(ImportOptions),
    errors=(400, 401, 403, 409, 413, 429, 503),
)
async def take_in(exchange: RequestExchange) -> None:
    asked = QueryFields(exchange.scope["query_string"]).options(ImportOptions)
    options = SandboxOptions(memory_mib=asked.memory_mib, disk_mib=asked.disk_mib)
    made = exchange.application.creation.importing(options, exchange.owner)
    async with exchange.link.call() as call:
        await call.send(encode(calls.IMPORT, {**creation.allowed(exchange, made), "more": True}))
        await send_body(exchange, call)
        frame = await final_frame(call)
    if frame.kind == calls.ERROR:
        raise calls.read_error(frame.header)
    await answer_json(exchange, {"id": fields.text(frame.header, "id")}, status=201)


ROUTES: list[Route] = [
    ("GET", "/v1/snapshots/{snapshot_id}/export", export),
    ("POST", "/v1/snapshots/import", take_in),
]
