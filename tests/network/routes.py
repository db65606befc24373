"""What the HTTP servers of these tests answer.

| path | answer |
|---|---|
| /echo | the request as JSON: method, target, headers (pairs), body (text) and body_base64 |
| /bytes/N | N bytes, their number told ahead |
| /chunked/N | N chunks, each ``chunk I`` and a line end |
| /slow | the first half of ten bytes; the second when the test sets ``server.released`` |
| /redirect?to=URL | 302 |
| /status/N | that status |
| /headers?NAME=VALUE&... | these headers |
| /type?as=TYPE | the request's body, as that content type |
| /gzip | ``squeezed`` and a line end, compressed |
| /events | three server-sent events |
| /websocket | a websocket that echoes texts and binaries |
| /table.csv | two columns, three rows |
| /files/NAME | what the test has put into ``server.files`` |
| /simple/..., /git/... | a package index, a git repository: where the server was given one |
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import responses
from typing import BinaryIO
from urllib.parse import parse_qsl, urlsplit

import trustme

from tests.network.servers import WAIT_SECONDS, Request, Server, certified

Headers = tuple[tuple[str, str], ...]
More = Callable[[Request, "Answering"], bool]
"""Another thing a server has: True if the request was for it, and is answered."""

TABLE = b"city,degrees\nOslo,4\nRome,17\nLima,22\n"
_TEXT: Headers = (("Content-Type", "text/plain"),)
_WEBSOCKET_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455


class Answering:
    """One HTTP/1.1 connection of a server: reads requests, writes answers."""

    def __init__(self, connection: socket.socket, server: Server, more: More | None) -> None:
        self._reader: BinaryIO = connection.makefile("rb")
        self._connection = connection
        self._server = server
        self._more = more

    def serve(self) -> None:
        with self._reader:
            while (request := self._read()) is not None:
                self._server.requests.append(request)
                if not self._answer(request) or (request.header("Connection") or "").lower() == "close":
                    return

    def _read(self) -> Request | None:
        line = self._reader.readline(65537)
        if not line:
            return None
        method, target, _ = line.decode("latin-1").split()
        headers: list[tuple[str, str]] = []
        while (line := self._reader.readline(65537).rstrip(b"\r\n")) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            headers.append((name, value.strip()))
        head = Request(method, target, tuple(headers), b"")
        if (head.header("Expect") or "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(method, target, tuple(headers), self._body(head))

    def _body(self, head: Request) -> bytes:
        if (head.header("Transfer-Encoding") or "").lower() == "chunked":
            body = b""
            while size := int(self._reader.readline().split(b";")[0], 16):
                body += self._reader.read(size)
                self._reader.readline()
            while self._reader.readline().rstrip(b"\r\n"):
                pass  # trailers
            return body
        return self._reader.read(int(head.header("Content-Length") or 0))

    def write(self, data: bytes) -> None:
        self._connection.sendall(data)

    def head(self, status: int, headers: Headers) -> None:
        lines = [
            f"HTTP/1.1 {status} {responses.get(status, 'Other')}",
            *(f"{name}: {value}" for name, value in headers),
        ]
        self.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def whole(self, body: bytes, status: int = 200, headers: Headers = _TEXT, method: str = "GET") -> bool:
        self.head(status, (*headers, ("Content-Length", str(len(body)))))
        if method != "HEAD":
            self.write(body)
        return True

    def chunked(self, chunks: list[bytes], headers: Headers = _TEXT) -> bool:
        self.head(200, (*headers, ("Transfer-Encoding", "chunked")))
        for chunk in chunks:
            self.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.write(b"0\r\n\r\n")
        return True

    def _answer(self, request: Request) -> bool:
        """Answers one request; False: the connection is at its end."""
        address = urlsplit(request.target)
        asked = dict(parse_qsl(address.query))
        kind, _, first = address.path[1:].partition("/")
        match kind:
            case "echo":
                return self.whole(
                    _echoed(request), headers=(("Content-Type", "application/json"),), method=request.method
                )
            case "bytes":
                return self.whole(_some_bytes(int(first)), method=request.method)
            case "chunked":
                return self.chunked([b"chunk %d\n" % number for number in range(int(first))])
            case "slow":
                return self._slow()
            case "redirect":
                return self.whole(b"", 302, (("Location", asked["to"]),))
            case "status":
                return self.whole(b"", int(first))
            case "headers":
                return self.whole(b"", headers=tuple(asked.items()))
            case "type":
                return self.whole(request.body, headers=(("Content-Type", asked["as"]),))
            case "gzip":
                return self.whole(gzip.compress(b"squeezed\n"), headers=(("Content-Encoding", "gzip"), *_TEXT))
            case "events":
                events = [b"data: event %d\n\n" % number for number in range(3)]
                return self.chunked(events, (("Content-Type", "text/event-stream"),))
            case "websocket":
                return self._websocket(request)
            case "table.csv":
                return self.whole(TABLE, headers=(("Content-Type", "text/csv"),), method=request.method)
            case "files" if first in self._server.files:
                return self.whole(self._server.files[first], method=request.method)
        if self._more is not None and self._more(request, self):
            return True
        return self.whole(b"nothing is here\n", 404)

    def _slow(self) -> bool:
        self.head(200, (*_TEXT, ("Content-Length", "10")))
        self.write(b"first")
        self._server.released.wait(WAIT_SECONDS)
        self.write(b" half")
        return True

    def _websocket(self, request: Request) -> bool:
        key = request.header("Sec-WebSocket-Key")
        if key is None or (request.header("Upgrade") or "").lower() != "websocket":
            return self.whole(b"only as a websocket\n", 400)
        accept = base64.b64encode(hashlib.sha1((key + _WEBSOCKET_GUID).encode()).digest()).decode()
        self.head(101, (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)))
        while (frame := self._frame()) is not None:
            kind, data = frame
            self.write(websocket_frame(kind, data))
            if kind == 8:
                break
        return False

    def _frame(self) -> tuple[int, bytes] | None:
        start = self._reader.read(2)
        if len(start) < 2:
            return None
        size = start[1] & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", self._reader.read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._reader.read(8))
        mask = self._reader.read(4) if start[1] & 0x80 else bytes(4)
        data = self._reader.read(size)
        return start[0] & 0x0F, bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))


def websocket_frame(kind: int, data: bytes, mask: bytes | None = None) -> bytes:
    """One unfragmented frame: kind 1 is text, 2 binary, 8 the end. Clients mask theirs."""
    bit = 0x80 if mask is not None else 0
    if len(data) < 126:
        head = bytes([0x80 | kind, bit | len(data)])
    elif len(data) < 65536:
        head = bytes([0x80 | kind, bit | 126]) + struct.pack(">H", len(data))
    else:
        head = bytes([0x80 | kind, bit | 127]) + struct.pack(">Q", len(data))
    if mask is None:
        return head + data
    return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))


def _echoed(request: Request) -> bytes:
    return json.dumps(
        {
            "method": request.method,
            "target": request.target,
            "headers": [list(pair) for pair in request.headers],
            "body": request.body.decode("latin-1"),
            "body_base64": base64.b64encode(request.body).decode(),
        }
    ).encode()


def _some_bytes(count: int) -> bytes:
    pattern = bytes(range(256)) * 256
    return (pattern * (count // len(pattern) + 1))[:count]


@contextmanager
def http_serving(authority: trustme.CA | None = None, more: More | None = None) -> Iterator[Server]:
    """An HTTP server, or with an authority an HTTPS server that has certificates of it."""
    tls = certified(authority) if authority is not None else None
    server = Server(lambda connection: Answering(connection, server, more).serve(), "https" if tls else "http", tls)
    try:
        yield server
    finally:
        server.close()
