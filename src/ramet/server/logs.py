"""What the server says of itself: a line for each request and each event, for people or for machines.

A line holds who, what, how long and how it ended. It never holds code, output, environment values, keys, file paths or
query strings: a log is read by more people than a sandbox is.
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

# Writing so much to a pipe is one step for the kernel, which poll() promises not to block (PIPE_BUF, pipe(7)).
_LINE_BYTES_AT_MOST = 4096
_TEXT_CHARACTERS_AT_MOST = 600
_PLAIN = re.compile(r"[A-Za-z0-9_./:{}+@\[\]-]+")
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=str)  # json.dumps would make one for each line
# version, trace id, parent id, flags; a later version may have more behind them.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def trace_id(traceparent: str | None) -> str | None:
    """The trace that a request belongs to, if its header is what W3C Trace Context says it must be."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace, parent, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    return None if not trace.strip("0") or not parent.strip("0") else trace


class RequestLog:
    """What is known of one request so far. Its line is written when it is over."""

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
        # For the audit log only.
        self.action: str | None = None  # None: nothing that is audited
        self.owner = ""  # the key's id
        self.sandbox_key: str | None = None  # whose the sandbox is, if it is not the caller's
        self.outcome: str | None = None  # of a cell
        self.error: str | None = None  # the code of the error that was answered
        self.received_bytes = 0
        self.made: Sequence[str] = ()  # the children of a fork

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.received_at


class Log:
    """Owns nothing but its place to write to. It never waits: lines for which there is no room are counted instead."""

    def __init__(self, style: Literal["text", "json"] = "text", descriptor: int = 2) -> None:
        self._json = style == "json"
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self.dropped = 0
        self._untold = 0
        self._second = -1
        self._second_text = ""

    def event(self, event: str, /, level: str = "info", **values: object) -> None:
        """Something that happened to the server itself."""
        fields: dict[str, object] = {"level": level, "event": event, **values}
        self._write(self._json_line(fields) if self._json else self._text_line(fields))

    def record(self, fields: Mapping[str, object]) -> None:
        """A line of JSON with these fields, without those that are None."""
        self._write(self._json_line(fields))

    def request(self, request: RequestLog) -> None:
        """A request is over."""
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
        told = "".join(f" {name}={_word(value)}" for name, value in rest if value is not None)
        return f"{self._time()} {level[1]} {_word(event[1])}{told}"

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
        if self._untold:
            told: dict[str, object] = {"level": "warning", "event": "lines dropped", "count": self._untold}
            if self._written(self._json_line(told) if self._json else self._text_line(told)):
                self._untold = 0
        if not self._written(line):
            self.dropped += 1
            self._untold += 1

    def _written(self, line: str) -> bool:
        data = line.encode("ascii", "backslashreplace")[: _LINE_BYTES_AT_MOST - 1] + b"\n"
        try:
            return self._has_room() and os.write(self._descriptor, data) == len(data)
        except OSError:
            return False  # nobody reads any more; that must not end a request

    def _has_room(self) -> bool:
        return any(events & select.POLLOUT for _, events in self._poll.poll(0))


def _bounded(value: object) -> object:
    return value[:_TEXT_CHARACTERS_AT_MOST] if isinstance(value, str) else value


def _word(value: object) -> str:
    """A value as one word of a line: what could be taken for something else, or move a cursor, is escaped."""
    text = str(value)[:_TEXT_CHARACTERS_AT_MOST]
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
