"""How the events of a cell are written: as lines of output, or exactly.

Both are NDJSON in ASCII with the same four keys in each event: type, data, seq, ts.
"""

from __future__ import annotations

import base64
import codecs
import json
import time
from dataclasses import asdict
from typing import Protocol

from ramet.errors import RametError
from ramet.protocol import calls
from ramet.protocol.frames import Frame
from ramet.protocol.results import Result, RichResult
from ramet.server.lines import STREAMS, LineEvents

# What a client sees as the exit code of a cell whose end we do not know.
_UNKNOWN_EXIT_CODE = -1


class Format(Protocol):
    """How a stream of frames is written."""

    def output(self, stream: int, data: bytes) -> bytes: ...
    def rich(self, frame: Frame) -> bytes: ...
    def result(self, frame: Frame, execution: str) -> bytes: ...
    def error(self, error: RametError) -> bytes: ...


class LineFormat:
    """Output only: what a value looks like is not printed by the cell, and not told."""

    def __init__(self) -> None:
        self._events = LineEvents()

    def output(self, stream: int, data: bytes) -> bytes:
        return self._events.output(stream, data)

    def rich(self, frame: Frame) -> bytes:
        return b""

    def result(self, frame: Frame, execution: str) -> bytes:
        result = calls.read_result(frame)
        told = b""
        if result.state == "lost":
            told = self._events.message(f"the sandbox lost its state: {result.cause or 'its REPL ended'}")
        return told + self._events.exit(result.exit_code)

    def error(self, error: RametError) -> bytes:
        return self._events.message(error.message) + self._events.exit(_UNKNOWN_EXIT_CODE)


class ChunkFormat:
    """Everything, exactly. A character whose bytes came apart is in the later piece."""

    def __init__(self) -> None:
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in STREAMS]
        self._next = 0

    def output(self, stream: int, data: bytes) -> bytes:
        text = self._decoders[stream].decode(data)
        return self._event(STREAMS[stream], text) if text else b""

    def rich(self, frame: Frame) -> bytes:
        shown = calls.read_rich(frame.header, frame.blob)
        return self._event("result", forms(shown), what=shown.what)

    def result(self, frame: Frame, execution: str) -> bytes:
        result = calls.read_result(frame)
        told = result_fields(result)
        return self._left() + self._event("exit", result.exit_code, execution_id=execution, result=told)

    def error(self, error: RametError) -> bytes:
        told = self._event("error", error.message, code=error.code, hint=error.hint, details=error.details)
        return self._left() + told + self._event("exit", _UNKNOWN_EXIT_CODE)

    def _left(self) -> bytes:
        left = [(name, decoder.decode(b"", final=True)) for name, decoder in zip(STREAMS, self._decoders, strict=True)]
        return b"".join(self._event(name, text) for name, text in left if text)

    def _event(self, kind: str, data: object, **more: object) -> bytes:
        number, self._next = self._next, self._next + 1
        event = {"type": kind, "data": data, "seq": number, "ts": time.time_ns() // 1_000_000, **more}
        return to_json(event) + b"\n"


def result_fields(result: Result) -> dict[str, object]:
    """A result as JSON."""
    return {
        "stdout": result.stdout,
        "stderr": result.stderr,
        "exit_code": result.exit_code,
        "value": result.value,
        "results": [{"what": shown.what, "data": forms(shown)} for shown in result.results],
        "interrupted": result.interrupted,
        "state": result.state,
        "cause": result.cause,
        "restarted": result.restarted,
        "truncated": None if result.truncated is None else asdict(result.truncated),
        "background": result.background,
        "error": None if result.error is None else asdict(result.error),
        "duration_seconds": result.duration_seconds,
        "cell_id": result.cell_id,
        "tool_calls": [asdict(call) for call in result.tool_calls],
        "tool_calls_dropped": result.tool_calls_dropped,
    }


def forms(shown: RichResult) -> dict[str, object]:
    """By MIME type: text as text, JSON as JSON, bytes as {"base64": ...}."""
    return {
        mime: {"base64": base64.b64encode(form).decode("ascii")} if isinstance(form, bytes) else form
        for mime, form in shown.data.items()
    }


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
