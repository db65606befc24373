"""Maps an error to HTTP: a status, headers and a JSON body."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ramet.errors import (
    EngineClosed,
    EngineLost,
    ExecutionCancelled,
    ExecutionUnknown,
    FileError,
    FileForbidden,
    FileNotFound,
    ForkFailed,
    HostNotCapable,
    InvalidArgument,
    LimitReached,
    MergeConflict,
    NameUnknown,
    NotPermitted,
    PointUnknown,
    ProtocolError,
    RametError,
    SandboxClosed,
    SandboxLost,
    TemplateFailed,
    Unauthorized,
    Unreachable,
    ValueUnsupported,
)

Headers = list[tuple[bytes, bytes]]

NOT_FOUND = "sandbox not found"

_STATUSES: dict[str, int] = {
    InvalidArgument.code: 400,
    ProtocolError.code: 400,
    Unauthorized.code: 401,
    FileForbidden.code: 403,
    NotPermitted.code: 403,
    ExecutionUnknown.code: 404,
    PointUnknown.code: 404,
    NameUnknown.code: 404,
    FileNotFound.code: 404,
    ExecutionCancelled.code: 409,
    ForkFailed.code: 409,
    MergeConflict.code: 409,
    SandboxLost.code: 409,
    TemplateFailed.code: 422,
    ValueUnsupported.code: 422,
    LimitReached.code: 429,
    Unreachable.code: 502,  # nothing listens on a port of a sandbox
    EngineLost.code: 503,
    EngineClosed.code: 503,
    HostNotCapable.code: 503,
}
_RETRY_STATUSES = (429, 503)
_RETRY_AFTER_SECONDS = 1


class RequestRefused(Exception):
    """A refusal by HTTP itself: no such path, wrong method, too large. The engine was not called."""

    def __init__(
        self, status: int, message: str, *, code: str = "http", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = dict(headers or {})


def status_of(error: RametError) -> int:
    if isinstance(error, SandboxClosed):
        return 410 if "cause" in error.details else 404
    if isinstance(error, FileError):
        return _STATUSES.get(error.code, 409)
    status = error.details.get("status")  # in some places the same kind of error has another HTTP status
    return status if type(status) is int and 400 <= status < 600 else _STATUSES.get(error.code, 500)


def retry_headers(status: int) -> Headers:
    return [(b"retry-after", b"%d" % _RETRY_AFTER_SECONDS)] if status in _RETRY_STATUSES else []


def error_body(error: RametError | RequestRefused) -> bytes:
    """The JSON body. Unknown ids, and ids of other keys, get the words that the published client looks for."""
    if isinstance(error, RequestRefused):
        return _encode(error.message, error.code, None, {})
    unknown = isinstance(error, SandboxClosed) and "cause" not in error.details
    return _encode(NOT_FOUND if unknown else error.message, error.code, error.hint, error.details)


def _encode(message: str, code: str, hint: str | None, details: Mapping[str, object]) -> bytes:
    answer = {"error": message, "code": code, "hint": hint, "details": dict(details)}
    return json.dumps(answer, separators=(",", ":"), default=str).encode("ascii")
