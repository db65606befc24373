"""Records of a cell's tool calls, at the end of its result: a JSON array with one entry for each call.

    [name, arguments or null, duration in seconds, outcome, message or null]

The arguments are a string with the text that the code in the sandbox sent. They are not embedded as JSON, because they
are unchecked.
"""

from __future__ import annotations

import json

from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.frames import encode_header
from ramet.protocol.tools.socket_frames import read_arguments
from ramet.protocol.values.results import ToolCallRecord

_FIELDS = ("name", "arguments", "duration", "outcome", "message")


def encode_record(name: str, arguments: str | None, seconds: float, outcome: str, message: str | None) -> str:
    return encode_header((name, arguments, seconds, outcome, message))


def read_records(blob: bytes, count: int) -> tuple[ToolCallRecord, ...]:
    """Read the records in the last ``count`` bytes of a result's blob."""
    try:
        rows = json.loads(blob[len(blob) - count :]) if count <= len(blob) else None
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list):
        raise ProtocolError("the tool calls of a result are not an array in JSON")
    return tuple(_record(row) for row in rows)


def _record(row: object) -> ToolCallRecord:
    if not isinstance(row, list) or len(row) != len(_FIELDS):
        raise ProtocolError(f"a tool call of a result has {len(_FIELDS)} fields")
    plain = dict(zip(_FIELDS, row, strict=True))
    return ToolCallRecord(
        fields.text(plain, "name"),
        _arguments(fields.optional_text(plain, "arguments")),
        fields.number(plain, "duration"),
        fields.text(plain, "outcome"),
        fields.optional_text(plain, "message"),
    )


def _arguments(text: str | None) -> dict[str, object] | None:
    """Parse arguments. Any code in the sandbox may have written them, so they may not be JSON."""
    try:
        arguments = None if text is None else read_arguments(text)
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None
