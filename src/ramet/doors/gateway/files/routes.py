"""`/v1/files`: uploads, lists, contents."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ramet.doors.gateway.code_side import CodeSide
from ramet.doors.gateway.errors import invalid
from ramet.doors.gateway.files import shapes
from ramet.doors.gateway.files.store import FileStore
from ramet.doors.gateway.files.upload_form import UploadForm

OwnerOf = Callable[[Request], str]


def routes(rooms: CodeSide, owner_of: OwnerOf) -> list[Route]:
    """All routes of files, for the application to mount.

    ``owner_of`` raises ApiError for a request without a valid key.
    """
    files = rooms.files

    async def upload(request: Request) -> Response:
        return JSONResponse(await _upload(files, owner_of(request), request))

    async def list_files(request: Request) -> Response:
        owner = owner_of(request)
        query = shapes.ListQuery.read(request.query_params.multi_items())
        older = shapes.wants_older_shape(request.headers)
        return JSONResponse(shapes.list_objects(files, owner, query, older=older))

    async def retrieve(request: Request) -> Response:
        return JSONResponse(shapes.file_object(files.get(owner_of(request), request.path_params["file_id"])))

    async def content(request: Request) -> Response:
        owner, file_id = owner_of(request), request.path_params["file_id"]
        row = shapes.downloadable(files, owner, file_id)
        headers = {
            "content-length": str(row.size_bytes),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(row.filename, safe='')}",
            # Unknown code made it, so a browser must not show it as a page.
            "x-content-type-options": "nosniff",
        }
        return StreamingResponse(files.content(owner, file_id), media_type=row.mime_type, headers=headers)

    async def delete(request: Request) -> Response:
        owner, file_id = owner_of(request), request.path_params["file_id"]
        await files.delete(owner, file_id)
        return JSONResponse(shapes.deleted_object(file_id))

    return [
        Route("/v1/files", upload, methods=["POST"]),
        Route("/v1/files", list_files, methods=["GET"]),
        Route("/v1/files/{file_id}", retrieve, methods=["GET"]),
        Route("/v1/files/{file_id}/content", content, methods=["GET"]),
        Route("/v1/files/{file_id}", delete, methods=["DELETE"]),
    ]


async def _upload(files: FileStore, owner: str, request: Request) -> dict[str, object]:
    async with aclosing(request.stream()) as body:
        form = UploadForm(request.headers.get("content-type", ""), body, files.limits.file_bytes)
        try:
            await form.find_file()
            async with aclosing(form.content()) as content:
                row = await files.add(
                    owner,
                    form.filename,
                    form.content_type,
                    content,
                    expires_in_seconds=lambda: shapes.read_expires_in(form.fields.get("expires_in_seconds")),
                )
        except ClientDisconnect:
            raise invalid("the connection closed before the upload was complete") from None
    return shapes.file_object(row)
