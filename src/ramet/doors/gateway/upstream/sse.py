"""Server-sent events: a parser for bytes as they arrive, and an encoder.

Parses what the standard allows (https://html.spec.whatwg.org/multipage/server-sent-events.html): any of three line
ends, comments, data over several lines. The upstream is not trusted: a line has a maximum length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramet.doors.gateway.encoding import to_json

_EVENT_BYTES_AT_MOST = 32 << 20
_LONG_BYTES = 64 * 1024
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class ServerEvent:
    name: str
    data: str


class EventTooLong(Exception):
    """Raised for more bytes without an end of line, or of an event, than any real event has."""


class EventReader:
    """Takes bytes and returns events."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # pieces of an incomplete line
        self._rest_bytes = 0
        self._name = ""
        self._data: list[str] = []
        self._size = 0
        self._first = True

    def feed(self, piece: bytes) -> list[ServerEvent]:
        ends = _LINE_END.search(piece) is not None or bool(self._rest and self._rest[-1].endswith(b"\r"))
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        if not ends and self._rest_bytes > _LONG_BYTES:
            if self._rest_bytes > _EVENT_BYTES_AT_MOST:
                raise EventTooLong
            return []  # join the pieces only at the end of the line, so that each is scanned once
        data = b"".join(self._rest)
        if self._first and len(data) >= 3:
            self._first = False
            data = data.removeprefix(b"\xef\xbb\xbf")
        lines = _LINE_END.split(data)
        rest = lines.pop()
        if data.endswith(b"\r") and lines:
            # The LF of this CR LF may come with the next bytes.
            rest = lines.pop() + b"\r"
        self._rest, self._rest_bytes = [rest], len(rest)
        return [event for line in lines if (event := self._line(line)) is not None]

    def end(self) -> list[ServerEvent]:
        """Note the end of the stream. The empty line after the last event is often missing."""
        rest = b"".join(self._rest).rstrip(b"\r")
        self._rest, self._rest_bytes = [], 0
        events = [self._line(rest) if rest else None, self._line(b"")]
        return [event for event in events if event is not None]

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            return None
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"event":
            self._name = text
        elif name == b"data":
            self._size += len(line)
            if self._size > _EVENT_BYTES_AT_MOST:
                raise EventTooLong
            self._data.append(text)
        return None

    def _dispatch(self) -> ServerEvent | None:
        name, data = self._name, self._data
        self._name, self._data, self._size = "", [], 0
        return ServerEvent(name, "\n".join(data)) if data else None


def encode(event: Mapping[str, Any]) -> bytes:
    """An event of the API, named after the type of its data."""
    return b"event: " + str(event["type"]).encode("ascii", "replace") + b"\ndata: " + to_json(event) + b"\n\n"


PING = encode({"type": "ping"})
