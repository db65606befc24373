"""Files of a sandbox over HTTP. Contents pass through piece by piece: the worker never holds a whole file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from email.utils import formatdate

from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.engine_link.link import EngineCall
from ramet.doors.http.requests.disconnects import ask, ends_with_client
from ramet.doors.http.requests.errors import Headers, RequestRefused
from ramet.doors.http.requests.exchange import ClientDisconnected, RequestExchange, Route
from ramet.doors.http.requests.json_answers import (
    ENTRY_BYTES,
    QUICK_ITEMS,
    answer_json,
    answer_long_json,
    answer_nothing,
)
from ramet.doors.http.requests.queries import QueryFields
from ramet.doors.http.requests.ranges import Part, Unsatisfiable, asked_part
from ramet.errors import FileForbidden, FileIsFolder, RametError
from ramet.protocol import calls, checks, fields
from ramet.protocol.frames import Frame, encode
from ramet.protocol.values.results import FileInfo

# Headers of an answer with the bytes of a file.
_HEADERS: Mapping[str, api.Schema] = {
    "Content-Length": {"schema": api.whole()},
    "Accept-Ranges": {"schema": api.text()},
    "Last-Modified": {"schema": api.text()},
}
# A browser must not take a file of a sandbox for a page of this server.
_AS_PLAIN_BYTES: Headers = [
    (b"content-type", b"application/octet-stream"),
    (b"content-disposition", b"attachment"),
    (b"x-content-type-options", b"nosniff"),
    (b"accept-ranges", b"bytes"),
]


def _query(exchange: RequestExchange) -> QueryFields:
    return QueryFields(exchange.scope["query_string"])


def _path(exchange: RequestExchange) -> str:
    query = _query(exchange)
    path = query.text("path")
    query.done()
    checks.check_path(path)
    return path


def _header(exchange: RequestExchange, sandbox_id: str, path: str, **more: object) -> dict[str, object]:
    return {"sandbox": sandbox_id, "owner": exchange.owner, "path": path, **more}


async def _stat(exchange: RequestExchange, sandbox_id: str, path: str) -> FileInfo:
    frame = await ask(exchange, calls.STAT, _header(exchange, sandbox_id, path))
    return FileInfo.read(frame.header)


# Contents


@api.operation(
    "download",
    "files",
    "The bytes of a file",
    {
        200: api.answer(
            "All of it.",
            api.BINARY,
            kind=api.BYTES,
            headers=_HEADERS,
        ),
        206: api.answer(
            "The part that was asked for.",
            api.BINARY,
            kind=api.BYTES,
            headers={**_HEADERS, "Content-Range": {"schema": api.text(), "example": "bytes 0-9/100"}},
        ),
    },
    parameters=[
        api.parameter("Path"),
        api.query(
            "Range",
            "One range: `bytes=0-99`, `bytes=100-`, `bytes=-50`. Several are answered with the whole file.",
            api.text(),
            place="header",
            example="bytes=0-99",
        ),
    ],
    errors=(*api.USUAL_ERRORS, 416),
)
async def download(exchange: RequestExchange, sandbox_id: str) -> None:
    path = _path(exchange)
    info = await _stat(exchange, sandbox_id, path)
    status, part, headers = _choose(exchange, info) if info.type == "file" else (200, Part(0, 0), _AS_PLAIN_BYTES)
    async with exchange.link.call() as call:
        more: dict[str, object] = {"offset": part.offset, "length": part.length}
        await call.send(encode(calls.READ, _header(exchange, sandbox_id, path, **more)))
        await _relay(exchange, call, status, headers, part.length)


def _choose(exchange: RequestExchange, info: FileInfo) -> tuple[int, Part, Headers]:
    size = info.size_bytes
    headers = [*_AS_PLAIN_BYTES, *_last_modified(info.modified_seconds)]
    try:
        part = asked_part(exchange.header(b"range"), size)
    except Unsatisfiable:
        raise RequestRefused(
            416, f"the file has {size} bytes", code="range", headers={"content-range": f"bytes */{size}"}
        ) from None
    if part is None:
        return 200, Part(0, size), [*headers, (b"content-length", b"%d" % size)]
    last = part.offset + part.length - 1
    headers.append((b"content-range", b"bytes %d-%d/%d" % (part.offset, last, size)))
    return 206, part, [*headers, (b"content-length", b"%d" % part.length)]


def _last_modified(seconds: float) -> Headers:
    try:
        return [(b"last-modified", formatdate(seconds, usegmt=True).encode("ascii"))]
    except (ValueError, OverflowError, OSError):
        return []  # a sandbox can give its files any time, even one that no calendar has


async def _relay(exchange: RequestExchange, call: EngineCall, status: int, headers: Headers, length: int) -> None:
    """Stream the chunks of the engine's answer. An error before the first of them is answered as an error."""
    left = length
    with ends_with_client(exchange, call):
        async for frame in call.frames():
            if frame.kind == calls.ERROR:
                raise calls.read_error(frame.header)
            if not exchange.started:
                await exchange.start(status, headers)
            if frame.kind == calls.CHUNK and left:
                piece = frame.blob[:left]
                left -= len(piece)
                await exchange.write(piece, more=bool(left))
    if left:
        # The head has promised a length. Aborting the connection is the only way to show that the body is short.
        raise RametError("the file became shorter while it was read")
    if not length:
        await exchange.write(b"", more=False)


@api.operation(
    "look",
    "files",
    "Size and time of a file",
    {
        200: api.answer("As GET would say, without the bytes.", headers=_HEADERS),
        **dict.fromkeys(api.USUAL_ERRORS, api.answer("As for GET, without a body.")),
    },
    parameters=[api.parameter("Path")],
    errors=(),
)
async def look(exchange: RequestExchange, sandbox_id: str) -> None:
    """HEAD: the headers of a GET of the whole file."""
    path = _path(exchange)
    info = await _stat(exchange, sandbox_id, path)
    if info.type != "file":
        kind = FileIsFolder if info.type == "folder" else FileForbidden
        raise kind("this is not a file")
    _, _, headers = _choose(exchange, info)
    await exchange.start(200, headers)
    await exchange.write(b"", more=False)


@api.operation(
    "upload",
    "files",
    "Write a file; folders above it are made",
    {204: api.DONE},
    help=(
        "A body of any length is written as it comes, with or without Content-Length. If the "
        "connection breaks, what had come by then stays."
    ),
    body=api.body(api.BINARY, kind=api.BYTES),
    parameters=[api.parameter("Path")],
)
async def upload(exchange: RequestExchange, sandbox_id: str) -> None:
    path = _path(exchange)
    length = exchange.header(b"content-length")
    if length is not None and length.isdigit() and int(length) <= calls.CHUNK_BYTES:
        data = await exchange.read_body(calls.CHUNK_BYTES)
        await ask(exchange, calls.WRITE, _header(exchange, sandbox_id, path, more=False), data)
    else:
        # Report a sandbox that does not exist before taking the data in.
        await _stat(exchange, sandbox_id, "/")
        async with exchange.link.call() as call:
            await call.send(encode(calls.WRITE, _header(exchange, sandbox_id, path, more=True)))
            await send_body(exchange, call)
            frame = await final_frame(call)
            if frame.kind == calls.ERROR:
                raise calls.read_error(frame.header)
    await answer_nothing(exchange)


async def send_body(exchange: RequestExchange, call: EngineCall) -> None:
    """Pass the body of a request on in chunks, no faster than the engine takes them."""
    try:
        async for piece in _pieces(exchange):
            for start in range(0, len(piece), calls.CHUNK_BYTES):
                if call.answer.final:
                    return  # the engine refused the upload; discard the rest
                await call.send(encode(calls.CHUNK, {}, piece[start : start + calls.CHUNK_BYTES]))
    except ClientDisconnected:
        # Abort explicitly, so that the engine lets go of the file before it answers the next request for it.
        await call.send(encode(calls.ABORT, {}))
        await final_frame(call)
        raise
    if not call.answer.final:
        await call.send(encode(calls.END, {}))


async def _pieces(exchange: RequestExchange) -> AsyncIterator[bytes]:
    while True:
        message = await exchange.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        if piece := message.get("body", b""):
            exchange.log.received_bytes += len(piece)
            yield piece
        if not message.get("more_body"):
            return


async def final_frame(call: EngineCall) -> Frame:
    """The answer, or the error."""
    frames = [frame async for frame in call.frames()]
    return frames[-1]


# Folders and names


@api.operation(
    "listFolder",
    "files",
    "The entries of a folder, by name",
    {
        200: api.answer(
            "Links are not followed.",
            api.record({"entries": api.array(api.ref("FileInfo"))}),
            {
                "entries": [
                    {"name": "data.csv", "type": "file", "size_bytes": 8, "mode": 420, "modified_seconds": 1776510028.5}
                ]
            },
        )
    },
    parameters=[
        api.query("path", "Default: the folder /root.", api.text(minLength=1, maxLength=4095), example="/root")
    ],
)
async def list_folder(exchange: RequestExchange, sandbox_id: str) -> None:
    query = _query(exchange)
    path = query.optional_text("path")
    query.done()
    path = "." if path is None else path
    checks.check_path(path)
    entries: list[object] = []
    async with exchange.link.call() as call:
        await call.send(encode(calls.LIST, _header(exchange, sandbox_id, path)))
        with ends_with_client(exchange, call):
            async for frame in call.frames():
                if frame.kind == calls.ERROR:
                    raise calls.read_error(frame.header)
                if frame.kind == calls.ENTRIES:
                    some = fields.array(frame.header, "entries")
                    exchange.hold(ENTRY_BYTES * len(some))
                    entries += some
    quick = len(entries) <= QUICK_ITEMS
    entries = sorted(entries, key=_name) if quick else await asyncio.to_thread(sorted, entries, key=_name)
    await answer_long_json(exchange, {"entries": entries}, entries)


def _name(entry: object) -> str:
    return fields.text(entry, "name") if isinstance(entry, dict) else ""


@api.operation(
    "stat",
    "files",
    "What is at a path",
    {
        200: api.answer(
            "Links are followed.",
            api.ref("FileInfo"),
            {"name": "data.csv", "type": "file", "size_bytes": 8, "mode": 420, "modified_seconds": 1776510028.5},
        )
    },
    parameters=[api.parameter("Path")],
)
async def stat(exchange: RequestExchange, sandbox_id: str) -> None:
    frame = await ask(exchange, calls.STAT, _header(exchange, sandbox_id, _path(exchange)))
    await answer_json(exchange, frame.header)


@api.operation(
    "makeFolder",
    "files",
    "Make a folder",
    {204: api.DONE},
    body=api.body(
        api.record(
            {
                "path": api.text(minLength=1, maxLength=4095),
                "parents": api.flag("Make those above it too, and take one that is there. Default: true.", null=True),
            },
            required=("path",),
        ),
        {"path": "out/deep"},
    ),
)
async def make_folder(exchange: RequestExchange, sandbox_id: str) -> None:
    body = await exchange.read_fields()
    path, parents = body.text("path"), body.flag("parents", True)
    body.done()
    checks.check_path(path)
    await ask(exchange, calls.MKDIR, _header(exchange, sandbox_id, path, parents=parents))
    await answer_nothing(exchange)


@api.operation(
    "rename",
    "files",
    "Rename or move a file or a folder",
    {204: api.DONE},
    body=api.body(
        api.record({"path": api.text(minLength=1, maxLength=4095), "new_path": api.text(minLength=1, maxLength=4095)}),
        {"path": "a.txt", "new_path": "b.txt"},
    ),
)
async def rename(exchange: RequestExchange, sandbox_id: str) -> None:
    body = await exchange.read_fields()
    path, new_path = body.text("path"), body.text("new_path")
    body.done()
    checks.check_path(path)
    checks.check_path(new_path, "new_path")
    await ask(exchange, calls.RENAME, _header(exchange, sandbox_id, path, new_path=new_path))
    await answer_nothing(exchange)


@api.operation(
    "remove",
    "files",
    "Remove a file or a folder",
    {204: api.DONE},
    parameters=[api.parameter("Path"), api.query("recursive", "Also a folder with all that is in it.", api.flag())],
)
async def remove(exchange: RequestExchange, sandbox_id: str) -> None:
    query = _query(exchange)
    path, recursive = query.text("path"), query.flag("recursive")
    query.done()
    checks.check_path(path)
    await ask(exchange, calls.REMOVE, _header(exchange, sandbox_id, path, recursive=recursive))
    await answer_nothing(exchange)


_FILES = "/v1/sandboxes/{sandbox_id}/files"

ROUTES: list[Route] = [
    ("GET", _FILES, download),
    ("HEAD", _FILES, look),
    ("PUT", _FILES, upload),
    ("DELETE", _FILES, remove),
    ("GET", f"{_FILES}/list", list_folder),
    ("GET", f"{_FILES}/stat", stat),
    ("POST", f"{_FILES}/mkdir", make_folder),
    ("POST", f"{_FILES}/rename", rename),
]
