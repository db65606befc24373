"""Replaces ids of uploaded images and documents in messages by the content of the files.

The gateway stores the files, and the upstream does not know them. An id of another kind stays unchanged.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from ramet.doors.gateway.errors import ApiError, invalid
from ramet.doors.gateway.files.refusals import FileUnknown
from ramet.doors.gateway.files.store import FileStore
from ramet.doors.gateway.kinds import AnyBlock, Message

_BYTES_AT_MOST = 32 << 20


async def inlined(messages: Sequence[Message], files: FileStore, owner: str) -> tuple[Message, ...]:
    """The messages with the contents of files in place of their ids. Raises ApiError."""
    inlining = _Inlining(files, owner)
    found = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and _names_a_file(content):
            message = {**message, "content": [await inlining.block(block) for block in content]}
        found.append(message)
    return tuple(found)


def _names_a_file(content: list[Any]) -> bool:
    return any(
        _file_id(block) is not None
        or (isinstance(block, dict) and isinstance(block.get("content"), list) and _names_a_file(block["content"]))
        for block in content
    )


def _file_id(block: object) -> str | None:
    if not isinstance(block, dict) or block.get("type") not in ("image", "document"):
        return None
    source = block.get("source")
    file_id = source.get("file_id") if isinstance(source, dict) and source.get("type") == "file" else None
    return file_id if isinstance(file_id, str) else None


class _Inlining:
    """The files of one request. One limit covers all of them, because a short request can name a file many times."""

    def __init__(self, files: FileStore, owner: str) -> None:
        self._files = files
        self._owner = owner
        self._bytes = 0

    async def block(self, block: Any) -> Any:
        file_id = _file_id(block)
        if file_id is not None:
            return {**block, "source": await self._source(block, file_id)}
        if isinstance(block, dict) and isinstance(block.get("content"), list):
            return {**block, "content": [await self.block(one) for one in block["content"]]}
        return block

    async def _source(self, block: AnyBlock, file_id: str) -> dict[str, Any]:
        try:
            row = self._files.get(self._owner, file_id)
        except FileUnknown:
            source: dict[str, Any] = block["source"]
            return source
        self._bytes += row.size_bytes
        if self._bytes > _BYTES_AT_MOST:
            raise ApiError(413, f"the files in messages are longer than {_BYTES_AT_MOST} bytes, with file {file_id}")
        data = b"".join([piece async for piece in self._files.content(self._owner, file_id)])
        if block["type"] == "document" and row.mime_type.startswith("text/"):
            return {"type": "text", "media_type": "text/plain", "data": data.decode("utf-8", "replace")}
        if block["type"] == "document" and row.mime_type != "application/pdf":
            raise invalid(
                f"file {file_id} is {row.mime_type}: a document must be PDF or text; use container_upload for others"
            )
        return {"type": "base64", "media_type": row.mime_type, "data": base64.b64encode(data).decode("ascii")}
