"""Output as one event for each line, as the published client expects: NDJSON in ASCII.

An event is ``{"type":"stdout","data":"one line, no newline","seq":0,"ts":1776510028036}``.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterable
from json.encoder import encode_basestring_ascii

# A longer line is cut here, so that an endless line does not fill the memory.
LINE_BYTES_AT_MOST = 16 * 1024 * 1024

STREAMS = ("stdout", "stderr")


class LineCutter:
    """Splits a stream of bytes at LF, and only there, into text without line breaks."""

    def __init__(self, line_bytes_at_most: int = LINE_BYTES_AT_MOST) -> None:
        self._most = line_bytes_at_most
        self._unfinished = bytearray()

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that are complete now."""
        end = data.rfind(b"\n")
        if end < 0:
            self._unfinished += data
            return self._overlong()
        # In UTF-8, LF is never part of another character: whole lines can be decoded on their own.
        whole = data[:end]
        if self._unfinished:
            whole = bytes(self._unfinished) + whole
            self._unfinished.clear()
        self._unfinished += data[end + 1 :]
        lines = whole.decode("utf-8", "replace").split("\n")
        return lines + self._overlong()

    def finish(self) -> list[str]:
        """Return the last line, if no line break ended it."""
        if not self._unfinished:
            return []
        line = self._unfinished.decode("utf-8", "replace")
        self._unfinished.clear()
        return [line]

    def _overlong(self) -> list[str]:
        if len(self._unfinished) < self._most:
            return []
        text, taken = codecs.utf_8_decode(self._unfinished, "replace", False)
        del self._unfinished[:taken]
        return [text]


class LineEvents:
    """Numbers and encodes events. Joins many lines into one piece of bytes, so that a large output needs few writes."""

    def __init__(self) -> None:
        self._cutters = (LineCutter(), LineCutter())
        self._next = 0

    def output(self, stream: int, data: bytes) -> bytes:
        return self._lines(STREAMS[stream], self._cutters[stream].feed(data))

    def message(self, text: str) -> bytes:
        """An event with a message of the server, after the output of the program."""
        return self._left() + self._lines("stderr", text.split("\n"))

    def exit(self, code: int) -> bytes:
        return self._left() + self._write(f'{{"type":"exit","data":{code:d}')

    def _left(self) -> bytes:
        """The last line of each stream that has no line break at its end."""
        return b"".join(self._lines(name, cutter.finish()) for name, cutter in zip(STREAMS, self._cutters, strict=True))

    def _lines(self, name: str, lines: Iterable[str]) -> bytes:
        first = self._next
        written = [
            f'{{"type":"{name}","data":{encode_basestring_ascii(line)},"seq":{number}'
            for number, line in enumerate(lines, first)
        ]
        if not written:
            return b""
        self._next = first + len(written)
        end = f',"ts":{_now_ms()}}}\n'
        written.append("")
        return end.join(written).encode("ascii")

    def _write(self, begun: str) -> bytes:
        number, self._next = self._next, self._next + 1
        return f'{begun},"seq":{number},"ts":{_now_ms()}}}\n'.encode("ascii")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
