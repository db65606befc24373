"""Frames: all data on a control socket or on a connection of the engine is in frames.

    0        4         5      6                10             10 + H          4 + length
    | length | version | kind | header length H | header (JSON) | blob (the rest) |
      u32 LE   u8        u8     u32 LE            ASCII           raw bytes

``length`` counts everything after itself. Both sides know limits for header and blob, and a decoder refuses a frame as
soon as its first ten bytes exceed them: it never buffers more than one allowed frame and the bytes that came with its
end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import NamedTuple, NoReturn

from ramet.errors import ProtocolError
from ramet.protocol.lazy_dataclasses import dataclass
from ramet_guest.wire import FRAME_VERSION

VERSION = FRAME_VERSION

_PREFIX = Struct("<IBBI")
_AFTER_LENGTH = _PREFIX.size - 4

_KIB = 1024
_MIB = 1024 * _KIB


class Frame(NamedTuple):
    """One decoded frame. The header is a JSON object with unchecked contents."""

    kind: int
    header: Mapping[str, object]
    blob: bytes
    header_bytes: int = 0  # length of the encoded header


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest frame that one direction of a connection allows."""

    header_bytes: int
    blob_bytes: int


# A cell may be 64 MiB of code, with a small header; the environment in CONFIGURE is the largest header.
TO_GUEST = Bounds(header_bytes=8 * _MIB, blob_bytes=64 * _MIB)
# All sandboxes share the engine, which decodes and keeps headers: so the guest keeps its texts short.
FROM_GUEST = Bounds(header_bytes=64 * _KIB, blob_bytes=32 * _MIB)
TO_ENGINE = Bounds(header_bytes=8 * _MIB, blob_bytes=64 * _MIB)
# A result carries at most two streams of 10 MiB, the background output and 64 MiB of rich results.
FROM_ENGINE = Bounds(header_bytes=16 * _MIB, blob_bytes=128 * _MIB)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


encode_header = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decode_json = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


def encode(kind: int, header: Mapping[str, object], blob: bytes = b"") -> bytes:
    """Encode one frame as one bytes object, to be sent with one write."""
    return encode_text(kind, encode_header(header), blob)


def encode_text(kind: int, header: str, blob: bytes = b"") -> bytes:
    """Encode a frame whose header is already JSON in ASCII: frames of every cell are written by hand for speed."""
    length = len(header)
    prefix = _PREFIX.pack(_AFTER_LENGTH + length + len(blob), VERSION, kind, length)
    return b"".join((prefix, header.encode("ascii"), blob))


class FrameDecoder:
    """Cuts a stream of bytes into frames. Do not feed it again after a ProtocolError."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._buffer = bytearray()
        # The buffer is not examined again before it holds this many bytes.
        self._wanted = _PREFIX.size

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return bool(self._buffer)

    @property
    def missing_bytes(self) -> int:
        """At least how many bytes the next frame still needs: a good size for the next read."""
        return max(self._wanted - len(self._buffer), 0)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take in bytes that were read.

        Yield the frames that are now complete, lazily; the bytes are kept in any case.
        """
        if not self._buffer and len(data) >= _PREFIX.size:
            length, version, kind, header_length = _PREFIX.unpack_from(data)
            if len(data) == 4 + length:
                # Exactly one frame, the usual form of a small answer: nothing to buffer, nothing to copy twice.
                self._check_prefix(length, version, header_length)
                blob_start = _PREFIX.size + header_length
                header = _header(data[_PREFIX.size : blob_start])
                return iter((Frame(kind, header, data[blob_start:], header_length),))
        self._buffer += data
        return self._complete()

    def _complete(self) -> Iterator[Frame]:
        """Yield complete frames from the buffer."""
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
            # Removed before the yield: the caller may never resume this generator, and the next `feed` must not see the
            # frame again.
            del buffer[:end]
            self._wanted = _PREFIX.size
            yield Frame(kind, header, blob, header_length)

    def _check_prefix(self, length: int, version: int, header_length: int) -> None:
        """Refuse a frame by its first ten bytes, before its header and blob are buffered."""
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
    """Decode a header. Raise ProtocolError for anything but one JSON object in ASCII."""
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
