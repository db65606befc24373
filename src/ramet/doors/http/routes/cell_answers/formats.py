"""The formats of a cell's events: as lines of output, or exactly.

Both are NDJSON in ASCII, and each event has the same four keys: type, data, seq, ts.
"""

from __future__ import annotations

import codecs
import json
import time
from typing import Protocol

from ramet.doors.http.routes.cell_answers.line_events import STREAMS, LineEvents
from ramet.errors import RametError
from ramet.protocol import calls, fields
from ramet.protocol.frames import Frame
from ramet.protocol.values.results import json_forms

# The exit code of a cell whose end we do not know.
_UNKNOWN_EXIT_CODE = -1


class Format(Protocol):
    """How a stream of frames is written."""

    def output(self, stream: int, data: bytes) -> bytes: ...
    def rich(self, frame: Frame) -> bytes: ...
    def cleared(self, frame: Frame) -> bytes: ...
    def result(self, frame: Frame, execution: str) -> bytes: ...
    def error(self, error: RametError) -> bytes: ...


class LineFormat:
    """Output only. A result that the cell did not print is left out."""

    def __init__(self) -> None:
        self._events = LineEvents()

    def output(self, stream: int, data: bytes) -> bytes:
        return self._events.output(stream, data)

    def rich(self, frame: Frame) -> bytes:
        return b""

    def cleared(self, frame: Frame) -> bytes:
        return b""

    def result(self, frame: Frame, execution: str) -> bytes:
        return self._events.exit(calls.read_result(frame).exit_code)

    def error(self, error: RametError) -> bytes:
        return self._events.message(error.message) + self._events.exit(_UNKNOWN_EXIT_CODE)


class ChunkFormat:
    """Everything, exactly. A character whose bytes came in two pieces belongs to the later one."""

    def __init__(self) -> None:
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in STREAMS]
        self._next = 0

    def output(self, stream: int, data: bytes) -> bytes:
        text = self._decoders[stream].decode(data)
        return self._event(STREAMS[stream], text) if text else b""

    def rich(self, frame: Frame) -> bytes:
        shown = calls.read_rich(frame.header, frame.blob)
        return self._event("result", json_forms(shown), what=shown.what)

    def cleared(self, frame: Frame) -> bytes:
        return self._event("clear", None, wait=fields.flag(frame.header, "wait"))

    def result(self, frame: Frame, execution: str) -> bytes:
        result = calls.read_result(frame)
        return self._left() + self._event("exit", result.exit_code, execution_id=execution, result=result.to_dict())

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


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
