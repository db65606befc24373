"""The log of a door: a line for each request and each event, as text for people or JSON for machines.

A line says who did what, how long it took and how it ended. It never holds code, output, environment values, keys, file
paths or query strings, because more people read a log than may read a sandbox.
"""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

# A write of at most PIPE_BUF bytes to a pipe is atomic (pipe(7)), and does not block when poll() reports room.
_LINE_BYTES_AT_MOST = 4096
_TEXT_CHARACTERS_AT_MOST = 600
_PLAIN = re.compile(r"[A-Za-z0-9_./:{}+@\[\]-]+")
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=str)  # json.dumps would make one for each line
# Version, trace id, parent id, flags; later versions may append more.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def trace_id(traceparent: str | None) -> str | None:
    """The trace id in a valid ``traceparent`` header of W3C Trace Context, else None."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace, parent, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    return None if not trace.strip("0") or not parent.strip("0") else trace


class RequestLog:
    """The facts about one request, collected until it ends and its line is written."""

    __slots__ = (
        "action",
        "client",
        "error",
        "execution",
        "key",
        "made",
        "method",
        "outcome",
        "owner",
        "received_at",
        "received_bytes",
        "route",
        "sandbox",
        "sandbox_key",
        "sent_bytes",
        "status",
        "trace",
    )

    def __init__(self, method: str, client: str | None = None, traceparent: str | None = None) -> None:
        self.received_at = time.perf_counter()
        self.method = method
        self.client = client
        self.trace = None if traceparent is None else trace_id(traceparent)
        self.route = "unmatched"  # a template, never a path
        self.key: str | None = None
        self.sandbox: str | None = None
        self.execution: str | None = None
        self.status = 0
        self.sent_bytes = 0
        # The rest is for the audit log only.
        self.action: str | None = None  # None: the request is not audited
        self.owner = ""  # the key's id
        self.sandbox_key: str | None = None  # the key that owns the sandbox, if it is not the caller's
        self.outcome: str | None = None  # of a cell
        self.error: str | None = None  # the code of the error in the answer
        self.received_bytes = 0
        self.made: Sequence[str] = ()  # the children of a fork

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.received_at


class Log:
    """Writes lines to a descriptor that it does not own. It never blocks: it drops and counts lines that do not fit."""

    def __init__(self, style: Literal["text", "json"] = "text", descriptor: int = 2) -> None:
        self._json = style == "json"
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self.dropped = 0
        self._unreported = 0  # dropped lines that no line of the log mentions yet
        self._second = -1
        self._second_text = ""

    def event(self, event: str, /, level: str = "info", **values: object) -> None:
        """Log something that happened to the door itself."""
        fields: dict[str, object] = {"level": level, "event": event, **values}
        self._write(self._json_line(fields) if self._json else self._text_line(fields))

    def record(self, fields: Mapping[str, object]) -> None:
        """Write these fields as a line of JSON, without those that are None."""
        self._write(self._json_line(fields))

    def request(self, request: RequestLog) -> None:
        """Log a request that has ended."""
        milliseconds = request.seconds * 1000
        if self._json:
            self._write(
                self._json_line(
                    {
                        "level": "info",
                        "event": "request",
                        "method": request.method,
                        "route": request.route,
                        "status": request.status,
                        "ms": round(milliseconds, 3),
                        "bytes": request.sent_bytes,
                        "key": request.key,
                        "sandbox": request.sandbox,
                        "execution": request.execution,
                        "trace": request.trace,
                        "client": request.client,
                    }
                )
            )
            return
        line = (
            f"{self._time()} info request {_word(request.method)} {request.route} {request.status} "
            f"{milliseconds:.1f}ms {request.sent_bytes}B"
        )
        for name, value in (
            ("key", request.key),
            ("sandbox", request.sandbox),
            ("execution", request.execution),
            ("trace", request.trace),
            ("client", request.client),
        ):
            if value is not None:
                line += f" {name}={_word(value)}"
        self._write(line)

    def _text_line(self, fields: dict[str, object]) -> str:
        level, event, *rest = fields.items()
        words = "".join(f" {name}={_word(value)}" for name, value in rest if value is not None)
        return f"{self._time()} {level[1]} {_word(event[1])}{words}"

    def _json_line(self, fields: Mapping[str, object]) -> str:
        shown = {name: _bounded(value) for name, value in fields.items() if value is not None}
        return _ENCODER.encode({"time": self._time(), **shown})

    def _time(self) -> str:
        now_ms = time.time_ns() // 1_000_000
        second, millisecond = divmod(now_ms, 1000)
        if second != self._second:
            self._second = second
            self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._second_text}.{millisecond:03d}Z"

    def _write(self, line: str) -> None:
        if self._unreported:
            notice: dict[str, object] = {"level": "warning", "event": "lines dropped", "count": self._unreported}
            if self._written(self._json_line(notice) if self._json else self._text_line(notice)):
                self._unreported = 0
        if not self._written(line):
            self.dropped += 1
            self._unreported += 1

    def _written(self, line: str) -> bool:
        data = line.encode("ascii", "backslashreplace")[: _LINE_BYTES_AT_MOST - 1] + b"\n"
        try:
            return self._has_room() and os.write(self._descriptor, data) == len(data)
        except OSError:
            return False  # the reader is gone; that must not fail a request

    def _has_room(self) -> bool:
        return any(events & select.POLLOUT for _, events in self._poll.poll(0))


def _bounded(value: object) -> object:
    return value[:_TEXT_CHARACTERS_AT_MOST] if isinstance(value, str) else value


def _word(value: object) -> str:
    """The value as one word of a line. Quotes it if it could pass for other words or move the cursor of a terminal."""
    text = str(value)[:_TEXT_CHARACTERS_AT_MOST]
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
