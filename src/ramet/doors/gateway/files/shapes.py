"""The JSON shapes of the Files API, and the queries for lists. No HTTP.

A list has two shapes. The current one pages with an opaque cursor (``next_page``). The shape of the beta, which
requests with the beta header still expect, pages by ids (``first_id``, ``last_id``, ``has_more``).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ramet.doors.gateway.errors import ApiError, invalid
from ramet.doors.gateway.files.index import FileRow
from ramet.doors.gateway.files.refusals import FileNotDownloadable
from ramet.doors.gateway.files.store import FileStore

OLDER_BETA = "files-api-2025-04-14"
_LIMIT = 20
_LIMIT_AT_MOST = 1000
_IDS_AT_MOST = 100
EXPIRES_SECONDS_AT_LEAST = 3600
EXPIRES_SECONDS_AT_MOST = 7_776_000


def timestamp(seconds: float) -> str:
    """A time as RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def file_object(row: FileRow) -> dict[str, object]:
    return {
        "id": row.id,
        "type": "file",
        "filename": row.filename,
        "mime_type": row.mime_type,
        "size_bytes": row.size_bytes,
        "created_at": timestamp(row.created_seconds),
        "downloadable": row.downloadable,
        "expires_at": None if row.expires_seconds is None else timestamp(row.expires_seconds),
    }


def deleted_object(file_id: str) -> dict[str, object]:
    return {"id": file_id, "type": "file_deleted"}


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A query for a list: of some ids, or of a page."""

    ids: tuple[str, ...] | None = None
    limit: int = _LIMIT
    after: str | None = None
    before: str | None = None

    @classmethod
    def read(cls, query: Sequence[tuple[str, str]]) -> ListQuery:
        """Read the query string. Ignores unknown parameters, which belong to other versions. Raises ApiError."""
        ids = tuple(dict.fromkeys(value for name, value in query if name in ("ids", "ids[]")))
        single = dict(query)
        if ids:
            if "limit" in single or "page" in single:
                raise invalid("ids: cannot be used together with page or limit")
            if len(ids) > _IDS_AT_MOST:
                raise invalid(f"ids: at most {_IDS_AT_MOST} are allowed, {len(ids)} were given")
            return cls(ids=ids)
        page = single.get("page") or None
        after = single.get("after_id") or None
        before = single.get("before_id") or None
        if after is not None and before is not None:
            raise invalid("after_id and before_id: only one of them can be used")
        return cls(
            limit=_read_limit(single.get("limit")),
            after=after if page is None else _read_cursor(page),
            before=before if page is None else None,
        )


def list_objects(files: FileStore, owner: str, query: ListQuery, *, older: bool) -> dict[str, object]:
    """A page of an owner's files, newest first."""
    if query.ids is not None:
        rows: Sequence[FileRow] = files.some(owner, query.ids)
        more = False
    else:
        page = files.list(owner, query.limit, after=query.after, before=query.before)
        rows, more = page.rows, page.more
    data = [file_object(row) for row in rows]
    if older:
        first, last = (rows[0].id, rows[-1].id) if rows else (None, None)
        return {"data": data, "first_id": first, "last_id": last, "has_more": more}
    return {"data": data, "next_page": _cursor(rows[-1].id) if more else None}


def downloadable(files: FileStore, owner: str, file_id: str) -> FileRow:
    """The file, if its content may be downloaded. Raises FileNotDownloadable."""
    row = files.get(owner, file_id)
    if not row.downloadable:
        raise FileNotDownloadable(file_id)
    return row


def wants_older_shape(headers: Mapping[str, str]) -> bool:
    betas = re.split(r"[,\s]+", headers.get("anthropic-beta", ""))
    return OLDER_BETA in betas


def read_expires_in(value: str | None) -> int | None:
    """The form field of an upload that says how long to keep it. Raises ApiError."""
    if value is None or value == "":
        return None
    allowed = f"a number of seconds from {EXPIRES_SECONDS_AT_LEAST} to {EXPIRES_SECONDS_AT_MOST} is allowed"
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise invalid(f"expires_in_seconds: {allowed}")
    seconds = int(value)
    if not EXPIRES_SECONDS_AT_LEAST <= seconds <= EXPIRES_SECONDS_AT_MOST:
        raise invalid(f"expires_in_seconds: {allowed}")
    return seconds


def _read_limit(value: str | None) -> int:
    if value is None or value == "":
        return _LIMIT
    if not re.fullmatch(r"[0-9]{1,6}", value) or not 1 <= int(value) <= _LIMIT_AT_MOST:
        raise invalid(f"limit: must be from 1 to {_LIMIT_AT_MOST}")
    return int(value)


def _cursor(file_id: str) -> str:
    return "page_" + base64.urlsafe_b64encode(file_id.encode()).decode().rstrip("=")


def _read_cursor(page: str) -> str:
    refused: ApiError = invalid("page: must be a cursor from an earlier list")
    if not page.startswith("page_"):
        raise refused
    encoded = page.removeprefix("page_")
    try:
        padded = encoded + "=" * (-len(encoded) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise refused from None
