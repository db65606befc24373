"""Plays the engine's side of a tool socket: listens at an abstract name and answers calls with Python functions."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.guest.guest_driver import PATIENCE_SECONDS, PREFIX, Guest

TOOLS = 7
CALL, ANSWER, MORE = 1, 2, 3
PART_BYTES = 256 << 10


class Failure(Exception):
    """Makes the call fail in this way."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Blob:
    """An encoded value, sent as it is."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class Raw:
    """Bytes instead of an answer; the connection is closed after them."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class Call:
    """One call, as it came."""

    def __init__(self, connection: Connection, header: dict[str, Any], arguments: bytes) -> None:
        self.connection = connection
        self.tool: str = header["tool"]
        self.accepts: list[str] = header["accepts"]
        self.text = arguments.decode()
        self.arguments: dict[str, Any] = json.loads(arguments)


Handler = Callable[[Call], Any]


class Connection:
    def __init__(self, engine: ToolEngine, line: socket.socket) -> None:
        self.engine = engine
        self.line = line
        self.closed = threading.Event()

    def serve(self) -> None:
        try:
            while True:
                call = self._call()
                if call is None:
                    return
                self.engine.calls.append(call)
                try:
                    value = self.engine.handler(call)
                except Failure as failure:
                    header = {"outcome": "error", "kind": failure.kind, "message": str(failure), "more": False}
                    self.send(ANSWER, header)
                    continue
                if isinstance(value, Raw):
                    self.line.sendall(value.data)
                    return
                self._answer(value.data if isinstance(value, Blob) else encode(value))
        except OSError:
            pass
        finally:
            self.line.close()
            self.closed.set()

    def wait_until_hung_up(self) -> None:
        """In a handler: the guest has given up on this call."""
        self.line.settimeout(PATIENCE_SECONDS)
        assert self.line.recv(1) == b""

    def send(self, kind: int, header: Mapping[str, Any], blob: bytes = b"") -> None:
        encoded = json.dumps(header).encode()
        self.line.sendall(PREFIX.pack(6 + len(encoded) + len(blob), 1, kind, len(encoded)) + encoded + blob)

    def _answer(self, data: bytes) -> None:
        parts = [data[start : start + PART_BYTES] for start in range(0, max(len(data), 1), PART_BYTES)]
        for number, part in enumerate(parts):
            more = number < len(parts) - 1
            if number == 0:
                self.send(ANSWER, {"outcome": "value", "more": more}, part)
            else:
                self.send(MORE, {"more": more}, part)

    def _call(self) -> Call | None:
        prefix = self._read(PREFIX.size)
        if prefix is None:
            return None
        length, version, kind, header_length = PREFIX.unpack(prefix)
        assert (version, kind) == (1, CALL)
        rest = self._read(length - 6)
        assert rest is not None
        return Call(self, json.loads(rest[:header_length]), rest[header_length:])

    def _read(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            chunk = self.line.recv(count - len(data))
            if not chunk:
                assert not data, "half a frame"
                return None
            data += chunk
        return data


class ToolEngine:
    """Each connection in a thread of its own."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.name = f"ramet-test-{uuid.uuid4().hex}"
        self.calls: list[Call] = []
        self.connections: list[Connection] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(128)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def give(self, guest: Guest, tools: Sequence[Mapping[str, Any]]) -> None:
        guest.send(TOOLS, {"socket": self.name}, json.dumps(list(tools)).encode())

    def drop_connections(self) -> None:
        """Closes them all, as an engine does that needs room, or that is another one than before."""
        for connection in self.connections:
            if not connection.closed.is_set():
                connection.line.shutdown(socket.SHUT_RDWR)
        for connection in self.connections:
            assert connection.closed.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self._thread.join(PATIENCE_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(self, line)
            self.connections.append(connection)
            threading.Thread(target=connection.serve, daemon=True).start()


def tool(
    name: str,
    description: str = "",
    properties: Mapping[str, Any] | None = None,
    required: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """A tool as a sandbox is given it."""
    schema = {"type": "object", "properties": properties or {}, "required": list(required)}
    return {
        "name": name,
        "description": description,
        "input_schema": schema,
        "parameters": None,
        "returns": None,
        "calls_per_cell": None,
        "timeout_seconds": None,
        **more,
    }


def encode(value: Any, attachments: Sequence[tuple[str, bytes]] = ()) -> bytes:
    described = {"value": value, "attachments": [[kind, len(data)] for kind, data in attachments]}
    text = json.dumps(described).encode()
    return len(text).to_bytes(4, "little") + text + b"".join(data for _, data in attachments)
