"""Frames: the only thing that is ever written to a control socket or to a connection of the engine.

    0        4         5      6                10             10 + H          4 + length
    | length | version | kind | header length H | header (JSON) | blob (the rest) |
      u32 LE   u8        u8     u32 LE            ASCII           raw bytes

``length`` counts everything after itself. Both sides know bounds for header and blob, and a decoder refuses a frame as
soon as its first ten bytes break them: it never buffers more than one allowed frame and what came with its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, NoReturn

from ramet.errors import ProtocolError

VERSION = 1

_PREFIX = Struct("<IBBI")
_AFTER_LENGTH = _PREFIX.size - 4

_KIB = 1024
_MIB = 1024 * _KIB


class Frame(NamedTuple):
    """One decoded frame. The header is a JSON object of which nothing has been checked yet."""

    kind: int
    header: Mapping[str, object]
    blob: bytes
    header_bytes: int = 0  # as it came


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest frame that one direction of a connection allows."""

    header_bytes: int
    blob_bytes: int


# A cell may be 64 MiB of code; beside it travels a small header (the environment in CONFIGURE is the largest).
TO_GUEST = Bounds(header_bytes=8 * _MIB, blob_bytes=64 * _MIB)
# A header has to be decoded and kept by the engine, which all sandboxes share: the guest keeps its texts short.
FROM_GUEST = Bounds(header_bytes=64 * _KIB, blob_bytes=32 * _MIB)
TO_ENGINE = Bounds(header_bytes=8 * _MIB, blob_bytes=64 * _MIB)
# A result carries two streams of 10 MiB, the background output and 64 MiB of rich results at most.
FROM_ENGINE = Bounds(header_bytes=16 * _MIB, blob_bytes=128 * _MIB)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


encode_header = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decode_json = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


def encode(kind: int, header: Mapping[str, object], blob: bytes = b"") -> bytes:
    """One frame as one piece of bytes, so that one write sends it."""
    return encode_text(kind, encode_header(header), blob)


def encode_text(kind: int, header: str, blob: bytes = b"") -> bytes:
    """The same for a header that is JSON in ASCII already: the frames of every cell are worth writing by hand."""
    length = len(header)
    prefix = _PREFIX.pack(_AFTER_LENGTH + length + len(blob), VERSION, kind, length)
    return b"".join((prefix, header.encode("ascii"), blob))


class FrameDecoder:
    """Cuts a stream of bytes into frames. After a ProtocolError it must not be fed again."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._buffer = bytearray()
        # Bytes the buffer must hold before looking at it again is worth while.
        self._wanted = _PREFIX.size

    @property
    def in_frame(self) -> bool:
        """A frame has begun and is not complete."""
        return bool(self._buffer)

    @property
    def missing_bytes(self) -> int:
        """How many bytes at least are missing from the next frame: a good size for the next read."""
        return max(self._wanted - len(self._buffer), 0)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take in what was read and give the frames that are complete now, lazily: the bytes are kept either way."""
        if not self._buffer and len(data) >= _PREFIX.size:
            length, version, kind, header_length = _PREFIX.unpack_from(data)
            if len(data) == 4 + length:
                # Exactly one frame, as a small answer nearly always comes: nothing to buffer, nothing to copy twice.
                self._check_prefix(length, version, header_length)
                blob_start = _PREFIX.size + header_length
                header = _header(data[_PREFIX.size : blob_start])
                return iter((Frame(kind, header, data[blob_start:], header_length),))
        self._buffer += data
        return self._complete()

    def _complete(self) -> Iterator[Frame]:
        buffer = self._buffer
        while len(buffer) >= self._wanted:
            length, version, kind, header_length = _PREFIX.unpack_from(buffer)
            self._check_prefix(length, version, header_length)
            end = 4 + length
            if len(buffer) < end:
                self._wanted = end
                return
            blob_start = _PREFIX.size + header_length
            header = _header(bytes(buffer[_PREFIX.size : blob_start]))
            blob = bytes(memoryview(buffer)[blob_start:end]) if end > blob_start else b""
            del buffer[:end]
            self._wanted = _PREFIX.size
            yield Frame(kind, header, blob, header_length)

    def _check_prefix(self, length: int, version: int, header_length: int) -> None:
        if version != VERSION:
            raise ProtocolError(f"frame of version {version}, expected {VERSION}")
        if header_length > self._bounds.header_bytes:
            raise ProtocolError(f"frame header of {header_length} bytes, at most {self._bounds.header_bytes} allowed")
        blob_length = length - _AFTER_LENGTH - header_length
        if blob_length < 0:
            raise ProtocolError(f"frame of {length} bytes is too short for its header of {header_length} bytes")
        if blob_length > self._bounds.blob_bytes:
            raise ProtocolError(f"frame blob of {blob_length} bytes, at most {self._bounds.blob_bytes} allowed")


def _header(data: bytes) -> Mapping[str, object]:
    try:
        text = data.decode("ascii")
        header, end = _decode_json(text)
        if end != len(text):
            raise ValueError(f"something follows it at {end}")
    except RecursionError:
        raise ProtocolError("frame header is nested too deeply") from None
    except ValueError as error:
        raise ProtocolError(f"frame header is not JSON in ASCII: {error}") from None
    if not isinstance(header, dict):
        raise ProtocolError(f"frame header is a JSON {type(header).__name__}, expected an object")
    return header
