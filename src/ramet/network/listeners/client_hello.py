"""Reads the first message of a TLS client, far enough to know which server it asks for. Anything odd is refused.

record:     type 22, version, length (2)                one message may span several records
message:    type 1, length (3)
client hello: version (2), random (32), session id (1+n), cipher suites (2+n), compression (1+n), extensions (2+n)
extension:  type (2), length (2): 0 server name; 0xfe0d encrypted client hello
"""

from __future__ import annotations

from ramet.protocol.lazy_dataclasses import dataclass

HELLO_BYTES_AT_MOST = 64 * 1024
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _ENCRYPTED_HELLO = 0, 0xFE0D
_RECORD_BYTES_AT_MOST = 1 << 14


class MalformedHello(Exception):
    """Not a client hello, or one that is not to be trusted."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The parts of a client hello that are sent in the clear."""

    server_name: str | None
    encrypted_hello: bool  # there is another server name, which only the server can read


def read_hello(data: bytes) -> Hello | None:
    """Parse a client hello. None: incomplete. Ignores what follows it. Raises MalformedHello."""
    return HelloReader().feed(data)


class HelloReader:
    """Parses it as it arrives, each record once: a client may send it byte by byte, in records of one byte each."""

    def __init__(self) -> None:
        self.data = b""  # everything received
        self._at = 0  # where the first incomplete record begins
        self._message = bytearray()  # the content of the records before that

    def feed(self, more: bytes) -> Hello | None:
        """Add bytes. None: more are needed. Raises MalformedHello."""
        self.data += more
        data = self.data
        while len(data) >= self._at + 5:
            at = self._at
            if data[at] != _HANDSHAKE or data[at + 1] != 3:
                raise MalformedHello("it does not begin as TLS does")
            length = int.from_bytes(data[at + 3 : at + 5], "big")
            if not 0 < length <= _RECORD_BYTES_AT_MOST:
                raise MalformedHello("a record of TLS has an odd length")
            part = data[at + 5 : at + 5 + length]
            found = self._whole(part)
            if found is not None:
                return found
            if len(part) < length:
                break
            self._message += part
            self._at = at + 5 + length
        if len(data) > HELLO_BYTES_AT_MOST:
            raise MalformedHello("the first message of TLS is too long")
        return None

    def _whole(self, part: bytes) -> Hello | None:
        """The hello, if this part of a record completes it."""
        begun = bytes(self._message[:4]) + part[:4]
        if begun[0:1] and begun[0] != _CLIENT_HELLO:
            raise MalformedHello("the first message of TLS is not a client's")
        if len(begun) < 4:
            return None
        wanted = 4 + int.from_bytes(begun[1:4], "big")
        if wanted > HELLO_BYTES_AT_MOST:
            raise MalformedHello("the first message of TLS is too long")
        if len(self._message) + len(part) < wanted:
            return None
        return _hello(_HelloReader((bytes(self._message) + part)[4:wanted]))


class _HelloReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if self.left < count:
            raise MalformedHello("the first message of TLS is cut short")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def part(self, size: int) -> _HelloReader:
        """A part that is preceded by its length."""
        return _HelloReader(self.take(self.number(size)))


def _hello(reader: _HelloReader) -> Hello:
    reader.take(2 + 32)
    reader.part(1), reader.part(2), reader.part(1)
    if reader.left == 0:
        return Hello(None, False)
    extensions = reader.part(2)
    if reader.left:
        raise MalformedHello("there is something behind the extensions")
    found: dict[int, _HelloReader] = {}
    while extensions.left:
        kind = extensions.number(2)
        # Two server names could be read differently by us and by the server.
        if kind in found:
            raise MalformedHello("an extension is given twice")
        found[kind] = extensions.part(2)
    name = _server_name(found[_SERVER_NAME]) if _SERVER_NAME in found else None
    return Hello(name, _ENCRYPTED_HELLO in found)


def _server_name(extension: _HelloReader) -> str:
    names = extension.part(2)
    if names.number(1) != 0:
        raise MalformedHello("the server name is of an unknown kind")
    name = names.part(2)
    if names.left or extension.left:
        raise MalformedHello("there is more than one server name")
    try:
        return name.take(name.left).decode("ascii")
    except UnicodeDecodeError:
        raise MalformedHello("the server name is not ASCII") from None
