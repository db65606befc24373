"""Frames on the tool socket, and the reader that assembles an answer from them.

u32 length of all that follows | u8 version | u8 kind | u32 header length | header (JSON) | blob

CALL    ->  tool, formats that can be read; blob: the arguments, a JSON object
ANSWER  <-  value or error; blob: the value, or its first part
MORE    <-  blob: the next part
"""

from __future__ import annotations

from struct import Struct

from ramet_guest.tools import json_reader
from ramet_guest.wire import FRAME_VERSION, TOOL_ANSWER, TOOL_MORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Enough for nearly every answer in one read.
READ_BYTES = 64 << 10

_PREFIX = Struct("<IBBI")
_AFTER_LENGTH = _PREFIX.size - 4


class MalformedAnswer(Exception):
    """Raised when the bytes received are not an answer."""


def pack(kind: int, header: bytes, blob: bytes) -> bytes:
    length = len(header)
    return _PREFIX.pack(_AFTER_LENGTH + length + len(blob), FRAME_VERSION, kind, length) + header + blob


class GuestToolAnswer:
    """An incoming answer: the caller reads into `space()` and passes the count to `received` until it is `complete`."""

    def __init__(self, begun: bytes) -> None:
        self.header: dict[str, Any] = {}
        self.value = memoryview(b"")
        self.complete = False
        # Bytes of a frame whose header has not fully arrived, and the buffer for reading more of it.
        self._unread = begun
        self._scratch = bytearray()
        # The parts of the value so far. Grows by whole parts; the last one is filled in as it arrives.
        self._parts = bytearray()
        self._missing = 0
        self._more = True
        if not begun:
            raise MalformedAnswer
        self._read()

    def space(self) -> memoryview:
        """Returns the buffer for the next bytes.

        Release it before `received`: a bytearray cannot grow while a view of it exists.
        """
        if self._missing:
            return memoryview(self._parts)[-self._missing :]
        if not self._scratch:
            self._scratch = bytearray(READ_BYTES)
        return memoryview(self._scratch)

    def received(self, count: int) -> None:
        if count == 0:
            raise MalformedAnswer  # the engine has closed the connection
        if self._missing:
            self._missing -= count
            self._finish_if_whole()
        else:
            self._unread += memoryview(self._scratch)[:count]
            self._read()

    def _read(self) -> None:
        """Takes complete headers off the unread bytes."""
        while not self._missing and not self.complete and len(self._unread) >= _PREFIX.size:
            data = self._unread
            length, version, kind, header_length = _PREFIX.unpack_from(data)
            start, end = _PREFIX.size + header_length, 4 + length
            if version != FRAME_VERSION or kind != (TOOL_MORE if self.header else TOOL_ANSWER) or start > end:
                raise MalformedAnswer
            if len(data) < start:
                return
            header = read_header(data[_PREFIX.size : start])
            self.header = self.header or header
            self._more = header.get("more") is True
            part = memoryview(data)[start:end]
            self._missing = end - start - len(part)
            self._unread = data[end:]
            if self._missing or self._more or self._parts:
                self._parts += part
                self._parts += bytes(self._missing)
                self._finish_if_whole()
            else:
                # The usual answer: one frame in one read.
                self.value = part
                self.complete = True
        if self.complete and self._unread:
            raise MalformedAnswer

    def _finish_if_whole(self) -> None:
        if not self._missing and not self._more:
            self.value = memoryview(self._parts)
            self.complete = True


def read_header(data: bytes) -> dict[str, Any]:
    try:
        header = json_reader.read(data.decode())
    except ValueError:
        raise MalformedAnswer from None
    if type(header) is not dict or not header:
        raise MalformedAnswer
    return header
