"""Reads answers without frames: refusals by a server before it asks its engine, and answers of other programs."""

from __future__ import annotations

import json

from ramet.errors import (
    LimitReached,
    OutcomeUnknown,
    ProtocolError,
    RametError,
    Unauthorized,
    Unreachable,
    error_from_code,
)
from ramet.transport.http.messages import HttpAnswer

_QUOTED_CHARACTERS = 200
_KEY_HINT = "give a key as api_key=, or in RAMET_API_KEY; where the server runs one is made with: ramet keys create"


def refusal(answer: HttpAnswer, url: str) -> RametError:
    """Return the error for an answer without frames."""
    error = _told(answer.refusal) or _guessed(answer, url)
    if isinstance(error, Unauthorized) and error.hint is None:
        error.hint = _KEY_HINT
    after = answer.headers.get(b"retry-after", b"")
    if after.isdigit() and len(after) < 10:
        error.details.setdefault("retry_after_seconds", int(after))
    return error


def _told(body: bytes) -> RametError | None:
    """Return the error that a Ramet server describes."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    message, code = said.get("error"), said.get("code")
    hint, details = said.get("hint"), said.get("details")
    if not isinstance(message, str) or not isinstance(code, str):
        return None
    return error_from_code(
        code, message, hint if isinstance(hint, str) else None, details if isinstance(details, dict) else {}
    )


def _guessed(answer: HttpAnswer, url: str) -> RametError:
    """Return an error for the answer of something else: a proxy, a gateway, another program at the same port."""
    status = answer.status
    details = {"status": status}
    said = f"{url} answered with status {status}"
    if 300 <= status < 400:
        place = answer.headers.get(b"location", b"").decode("latin-1")
        return ProtocolError(
            f"{said} and redirects to {place[:_QUOTED_CHARACTERS]!r}; redirects are not followed",
            hint="give the URL of the server itself",
            details=details,
        )
    if status in (401, 403):
        return Unauthorized(f"{said}: {_quoted(answer.refusal)}", details=details)
    if status == 407:
        return Unreachable(f"{said}: the proxy requires a user and a password", details=details)
    if status == 429:
        return LimitReached(f"{said}: too many requests", details=details)
    if status >= 500:
        return OutcomeUnknown(f"{said}: {_quoted(answer.refusal)}; the call may have been executed", details=details)
    return ProtocolError(
        f"{said}, and not as a server of Ramet would: {_quoted(answer.refusal)}",
        hint="is this the URL of `ramet serve`?",
        details=details,
    )


def _quoted(body: bytes) -> str:
    text = body[: 4 * _QUOTED_CHARACTERS].decode("utf-8", "replace")
    return repr(text[:_QUOTED_CHARACTERS])
