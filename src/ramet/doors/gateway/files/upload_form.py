"""A multipart form with one file, parsed as it arrives: the file passes through in pieces.

The published client sends bytes as a part without a file name, so the name of the field marks the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ramet.doors.gateway.errors import invalid
from ramet.doors.gateway.files.refusals import FileTooLarge

_FILE = "file"
_FIELD_BYTES = 1024
_PARTS = 20
_HEADER_BYTES = 8 * 1024
# Bytes around the file: boundaries, headers of parts, other fields.
_AROUND_BYTES = 64 * 1024


@dataclass(slots=True)
class _Part:
    name: str = ""
    filename: str = ""
    content_type: str | None = None
    value: bytearray = field(default_factory=bytearray)


class UploadForm:
    """Reads a body once: ``find_file``, then ``content`` to its end; then ``fields`` is complete."""

    def __init__(self, content_type: str, body: AsyncIterator[bytes], file_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise invalid("upload a file as multipart/form-data, in the field 'file'")
        self.filename = ""
        self.content_type: str | None = None
        self.fields: dict[str, str] = {}
        self._body = body
        self._file_bytes = file_bytes
        self._read_bytes = 0
        self._found = False
        self._ended = False
        self._parts = 0
        self._part = _Part()
        self._header = [bytearray(), bytearray()]
        self._pieces: deque[bytes] = deque()  # parts of the file in the last read
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begins,
                    "on_header_field": lambda data, start, end: self._header_goes_on(0, data[start:end]),
                    "on_header_value": lambda data, start, end: self._header_goes_on(1, data[start:end]),
                    "on_header_end": self._header_ends,
                    "on_headers_finished": self._headers_end,
                    "on_part_data": self._part_goes_on,
                    "on_part_end": self._part_ends,
                    "on_end": self._form_ends,
                },
            )
        except FormParserError as error:
            raise invalid(f"the form could not be read: {error}") from None

    async def find_file(self) -> None:
        """Read up to the beginning of the file, so that its name and type are known. Raises ApiError."""
        while not self._found:
            if not await self._read():
                raise invalid("file: Field required")

    async def content(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the file. Reads on to the end of the form."""
        more = True
        while more:
            while self._pieces:
                yield self._pieces.popleft()
            more = await self._read()
        if not self._ended:
            raise invalid("the form could not be read: it is incomplete")

    async def _read(self) -> bool:
        """Parse the next piece of the body; False at its end."""
        piece = await anext(self._body, None)
        if piece is None:
            return False
        self._read_bytes += len(piece)
        if self._read_bytes > self._file_bytes + _AROUND_BYTES:
            raise FileTooLarge(f"the upload is larger than {self._file_bytes} bytes, which is the limit of a file")
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise invalid(f"the form could not be read: {error}") from None
        return True

    def _part_begins(self) -> None:
        self._part = _Part()
        self._parts += 1
        if self._parts > _PARTS:
            raise invalid(f"the form has more than {_PARTS} parts")

    def _header_goes_on(self, which: int, piece: bytes) -> None:
        self._header[which] += piece
        if len(self._header[which]) > _HEADER_BYTES:
            raise invalid(f"the form could not be read: a header of it is longer than {_HEADER_BYTES} bytes")

    def _header_ends(self) -> None:
        name, value = (bytes(one) for one in self._header)
        self._header = [bytearray(), bytearray()]
        if name.lower() == b"content-disposition":
            _, options = parse_options_header(value)
            self._part.name = options.get(b"name", b"").decode("utf-8", "replace")
            self._part.filename = options.get(b"filename", b"").decode("utf-8", "replace")
        elif name.lower() == b"content-type":
            self._part.content_type = value.decode("latin-1")

    def _headers_end(self) -> None:
        if self._part.name == _FILE:
            if self._found:
                raise invalid("file: only one file can be uploaded at a time")
            self._found = True
            self.filename, self.content_type = self._part.filename, self._part.content_type

    def _part_goes_on(self, data: bytes, start: int, end: int) -> None:
        if self._part.name == _FILE:
            self._pieces.append(data[start:end])
        elif len(self._part.value) + end - start > _FIELD_BYTES:
            raise invalid(f"{self._part.name[:80]}: is longer than {_FIELD_BYTES} bytes")
        else:
            self._part.value += data[start:end]

    def _part_ends(self) -> None:
        if self._part.name != _FILE:
            self.fields[self._part.name] = self._part.value.decode("utf-8", "replace")

    def _form_ends(self) -> None:
        self._ended = True
