"""What descriptions of routes have in common: tags, parameters, headers and errors."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.doors.http.documentation import openapi_parts as api

TAGS: Mapping[str, str] = {
    "sandboxes": "Make, list, extend and close them.",
    "cells": "Run code and ask for results.",
    "files": "Files of a sandbox, from outside.",
    "forks": "Copies, snapshots, comparisons.",
    "history": "What a sandbox was, and the ways back.",
    "terminals": "Interactive programs.",
    "network": "What sandboxes may reach, and how they are reached.",
    "server": "The server itself.",
}
SECURITY_SCHEMES: Mapping[str, api.Schema] = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key made with `ramet keys create`. A server on loopback needs none unless it was started "
        "with --require-key.",
    }
}

# Parameters of several routes, by the names that descriptions use for them.
PARAMETERS: Mapping[str, api.Schema] = {
    "Sandbox": api.query(
        "sandbox_id",
        "The id of a sandbox.",
        api.text(pattern="^sbx_[0-9a-f]{32}$"),
        place="path",
        required=True,
        example=api.SANDBOX_ID,
    ),
    "Execution": api.query(
        "execution_id",
        "The id of a cell, from the header `Ramet-Execution` of its answer.",
        api.text(pattern="^exe_[0-9a-f]{32}$"),
        place="path",
        required=True,
        example=api.EXECUTION_ID,
    ),
    "Snapshot": api.query(
        "snapshot_id",
        "The id of a snapshot.",
        api.text(pattern="^snp_[0-9a-f]{32}$"),
        place="path",
        required=True,
        example=api.SNAPSHOT_ID,
    ),
    "Space": api.query(
        "space_id",
        "The id of a persistent sandbox that ended.",
        api.text(pattern="^sbx_[0-9a-f]{32}$"),
        place="path",
        required=True,
        example=api.SANDBOX_ID,
    ),
    "Terminal": api.query(
        "terminal_id",
        "The id of a terminal.",
        api.text(pattern="^pty_[0-9a-f]{16}$"),
        place="path",
        required=True,
        example=api.TERMINAL_ID,
    ),
    "SavedName": api.query(
        "template",
        "The name that a snapshot was saved by.",
        api.text(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"),
        place="path",
        required=True,
        example="with-my-data",
    ),
    "Path": api.query(
        "path",
        "A path in the sandbox; a relative one is below /root. Bytes that are no UTF-8 may be percent-encoded.",
        api.text(minLength=1, maxLength=4095),
        required=True,
        example="/root/data.csv",
    ),
    "IdempotencyKey": api.query(
        "Idempotency-Key",
        "Within 24 hours the same request with the same key is carried out once and gets the same answer.",
        api.text(pattern="^[!-~]{1,255}$"),
        place="header",
        example="5f0c1e1e",
    ),
    "Port": api.query(
        "port", "A port of the sandbox.", api.whole(minimum=1, maximum=65535), place="path", required=True, example=8000
    ),
    "Token": api.query(
        "token",
        "Of an exposed port.",
        api.text(pattern="^[A-Za-z0-9_-]{32}$"),
        place="path",
        required=True,
        example=api.TOKEN,
    ),
    "Rest": api.query(
        "path",
        "What the server in the sandbox is asked for: all that follows, with its query.",
        api.text(),
        place="path",
        required=True,
        example="index.html",
    ),
}

HEADERS: Mapping[str, api.Schema] = {
    "RetryAfter": {"description": "Seconds to wait before trying again.", "schema": api.whole()},
    "Execution": {
        "description": "The id of this cell, to ask for its result later.",
        "schema": api.text(),
        "example": api.EXECUTION_ID,
    },
}


def _error(
    help: str, message: str, code: str, *, hint: str | None = None, retry: bool = False, **details: object
) -> api.Part:
    """With an example. ``retry``: the header Retry-After says when."""
    example = {"error": message, "code": code, "hint": hint, "details": details}
    headers = {"Retry-After": api.header("RetryAfter")} if retry else None
    return api.answer(help, api.ref("Error"), example, headers=headers)


# By status: the name of its description, and the description.
ERRORS: Mapping[int, tuple[str, api.Schema]] = {
    400: (
        "BadRequest",
        _error(
            "The request is not allowed as it is; `details.argument` names what is wrong.",
            "n: is 0",
            "invalid_argument",
            hint="allowed: a whole number from 1 to 256",
            argument="n",
        ),
    ),
    401: (
        "Unauthorized",
        _error(
            "No key, or a key that is not known.",
            "invalid api key",
            "unauthorized",
            hint="make one with: ramet keys create --name NAME",
        ),
    ),
    403: (
        "Forbidden",
        _error(
            (
                "The key is not for this, or not for so much of the network; the request comes from "
                "another site's page; or the sandbox does not allow it."
            ),
            "cannot write '/proc/1/mem' in the sandbox: Permission denied",
            "file_forbidden",
            errno=13,
            path="/proc/1/mem",
        ),
    ),
    404: (
        "NotFound",
        _error(
            "There is nothing of this id or path, or it belongs to another key.", "sandbox not found", "sandbox_closed"
        ),
    ),
    409: (
        "Conflict",
        _error(
            "It cannot be done in the state that things are in; or the idempotency key was used for another request.",
            "cannot read '/root' in the sandbox: Is a directory",
            "file_is_folder",
            errno=21,
            path="/root",
        ),
    ),
    410: (
        "Gone",
        _error(
            "The sandbox has ended; `details.cause` says why: closed, timeout, idle, merged or lost.",
            "sandbox sbx_0123456789abcdef0123456789abcdef ended: it was not used for 300 seconds",
            "sandbox_closed",
            cause="idle",
            ended_ms=1776510028036,
        ),
    ),
    413: (
        "TooLarge",
        _error(
            "The body is larger than this route takes.",
            "the body of this request may have at most 1048576 bytes",
            "too_large",
        ),
    ),
    416: ("OutOfRange", _error("The range begins behind the end of the file.", "the file has 10 bytes", "range")),
    422: (
        "TemplateFailed",
        _error(
            "A module to preload could not be imported.",
            "template 'mine' did not boot: No module named 'nothing'",
            "template_failed",
        ),
    ),
    429: (
        "LimitReached",
        _error(
            "A limit of the key or of the machine is reached; `details.limit` says which.",
            "this key has 100 sandboxes; its limit is 100",
            "limit_reached",
            hint="close some, or use a key with a higher limit",
            retry=True,
            limit="sandboxes",
            allowed=100,
        ),
    ),
    501: (
        "NotOffered",
        _error(
            "Another protocol than websockets was asked for.",
            "the only protocol that can be passed on is websocket",
            "http",
        ),
    ),
    502: (
        "BadGateway",
        _error(
            "Nothing listens on the port, or what listens does not speak HTTP.",
            "nothing listens on port 8000 of the sandbox",
            "unreachable",
        ),
    ),
    503: (
        "Unavailable",
        _error(
            "The engine is being started again, or the server is about to stop.",
            "the engine is not running; a new one is being started",
            "engine_lost",
            hint="try again in a moment",
            retry=True,
        ),
    ),
    504: (
        "Late",
        _error(
            "The server in the sandbox did not begin to answer.",
            "the server in the sandbox does not answer",
            "unreachable",
        ),
    ),
}
