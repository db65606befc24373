"""Failures of the upstream as errors of the API: its own with their status, all others in our words."""

from __future__ import annotations

import json
from typing import Any

from ramet.doors.gateway.errors import ApiError, kind_of, status_of

_SHOWN_CHARACTERS = 300


class UpstreamErrors:
    """Makes the errors, without any key: a server that quotes the key it refuses must not reveal it to our clients."""

    def __init__(self, upstream: str, key: str | None) -> None:
        self.upstream = upstream
        self._key = key

    def broken(self, what: str, status: int = 502) -> ApiError:
        """The error for an upstream that breaks the protocol."""
        return ApiError(status, self._without_key(f"the upstream {self.upstream} {what}"))

    def refusal(self, status: int, body: bytes, headers: dict[str, str]) -> ApiError:
        """An error of the upstream, with its status and its words."""
        body = self._without_key(body.decode("utf-8", "replace")).encode()
        found = json_object(body) or {}
        error = found.get("error")
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            kind, message = error.get("type"), error["message"]
            details = error.get("details")
        else:
            kind, details = None, None
            message = f"the upstream {self.upstream} answered {status}: {shown(body)}"
        if status == 401 and self._key is not None:
            message += " (the upstream says so of the key that this gateway was started with)"
        known = kind if isinstance(kind, str) and kind.endswith(("_error", "_too_large")) else kind_of(status)
        if status > 599:
            status, known = 502, "api_error"  # not a status of HTTP, so it cannot be sent on
        return ApiError(
            status,
            message,
            kind=known,
            details=details if isinstance(details, dict) else None,
            headers=headers,
        )

    def stream_error(self, event: dict[str, Any]) -> ApiError:
        error = event.get("error")
        if not isinstance(error, dict):
            return self.broken("sent an error without saying which")
        kind = self._without_key(str(error.get("type", "api_error")))
        message = self._without_key(str(error.get("message", "")) or "the upstream failed")
        return ApiError(status_of(kind), message, kind=kind)

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def json_object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def shown(body: bytes) -> str:
    text = " ".join(body[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "replace").split())
    return text[:_SHOWN_CHARACTERS] or "nothing"
