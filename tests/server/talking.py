"""A plain HTTP client for tests, and the frames of the engine's protocol over it."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode

WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.split(b"\n") if line]

    @property
    def frames(self) -> list[Frame]:
        return list(FrameDecoder(FROM_ENGINE).feed(self.body))

    @property
    def error(self) -> str:
        return str(self.json["error"])


class Client:
    """One connection that is kept. Each method sends one request and reads its answer."""

    def __init__(self, port: int, key: str | None = None) -> None:
        self.port = port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._response: http.client.HTTPResponse | None = None

    def close(self) -> None:
        if self._response is not None:
            self._response.close()  # it holds the socket too
        self.connection.close()

    def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send; the answer's body is left to be read."""
        data = body if body is None or isinstance(body, bytes) or hasattr(body, "__next__") else json.dumps(body)
        self.connection.request(method, path, data, {**self._headers, **(headers or {})})  # type: ignore[arg-type]
        self._response = self.connection.getresponse()
        return self._response

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        response = self.send(method, path, body, headers)
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())

    def call(
        self, kind: int, header: Mapping[str, object], blob: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """A call as the SDK makes it."""
        return self.ask("POST", "/v1/call", encode(kind, header, blob), headers)

    def create(self, **fields: object) -> str:
        answer = self.ask("POST", "/v1/sandboxes", fields)
        assert answer.status == 201, answer
        return str(answer.json["id"])

    def execute(self, sandbox_id: str, code: str, **fields: object) -> Answer:
        return self.ask("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"code": code, **fields})

    def stdout(self, sandbox_id: str, code: str, **fields: object) -> str:
        answer = self.execute(sandbox_id, code, **fields)
        assert answer.status == 200, answer
        return "\n".join(event["data"] for event in answer.events if event["type"] == "stdout")

    def remove(self, sandbox_id: str) -> None:
        assert self.ask("DELETE", f"/v1/sandboxes/{sandbox_id}").status == 204


@contextmanager
def raw_connection(port: int) -> Iterator[socket.socket]:
    """A connection on which a test says what it likes."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Until the server hangs up; a reset is an end like any other."""
    parts = []
    try:
        while piece := connection.recv(65536):
            parts.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def wait_until(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until, f"waited too long until {what}"
        time.sleep(0.01)
