"""Errors in the shape of the Messages API.

    {"type": "error", "error": {"type": "not_found_error", "message": "...", "details": {...}}, "request_id": "req_..."}

Every failure that a client sees is an ``ApiError``. Its ``details`` hold an ``error_code`` where the published client
reads one. In a stream that has begun, it is sent as an event of the same shape.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from ramet.doors.gateway.encoding import to_json

# The kind of error that the API gives with each status.
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STATUSES = {kind: status for status, kind in _KINDS.items() if status != 405}


class ApiError(Exception):
    """An error that a client gets instead of an answer, or in the middle of a streamed one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        error_code: str | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or kind_of(status)
        self.details: dict[str, Any] = dict(details or {})
        if error_code is not None:
            self.details = {"error_code": error_code, **self.details}
        self.headers = dict(headers or {})

    @property
    def error_code(self) -> str | None:
        code = self.details.get("error_code")
        return code if isinstance(code, str) else None

    def body(self, request_id: str) -> dict[str, Any]:
        error: dict[str, Any] = {"type": self.kind, "message": self.message}
        if self.details:
            error["details"] = self.details
        return {"type": "error", "error": error, "request_id": request_id}

    def encoded(self, request_id: str) -> bytes:
        return to_json(self.body(request_id))


def kind_of(status: int) -> str:
    if status in _KINDS:
        return _KINDS[status]
    return "invalid_request_error" if 400 <= status < 500 else "api_error"


def status_of(kind: str) -> int:
    """The status of an error that arrived without one, in a stream."""
    return _STATUSES.get(kind, 500)


def invalid(message: str, *, error_code: str | None = None, details: Mapping[str, Any] | None = None) -> ApiError:
    """The error for an invalid request."""
    return ApiError(400, message, error_code=error_code, details=details)


def not_found(message: str, *, error_code: str | None = None) -> ApiError:
    return ApiError(404, message, error_code=error_code)


def new_request_id() -> str:
    return "req_" + secrets.token_hex(12)
