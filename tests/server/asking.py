"""Plain HTTP, as a test speaks it: one request, one answer, nothing in between that could mend what is wrong."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

ANSWER_SECONDS = 60


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of an error."""
        return str(self.json["code"])


class Caller:
    """Somebody who asks a server, with a key or without."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 0
        self._key = key

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | Iterable[bytes] | object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """A body that is neither bytes nor an iterable of them is sent as JSON."""
        if isinstance(body, dict) or not (body is None or isinstance(body, Iterable)):
            body = json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request(method, target, body, {**self._authorization, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, {n.lower(): v for n, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def begin(self, method: str, target: str, head: str = "", body: bytes = b"") -> socket.socket:
        """A request by hand, of which the test has the connection."""
        connection = socket.create_connection((self.host, self.port), timeout=ANSWER_SECONDS)
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in self._authorization.items()]
        connection.sendall("\r\n".join([*lines, head, ""] if head else [*lines, ""]).encode() + b"\r\n" + body)
        return connection

    @property
    def _authorization(self) -> dict[str, str]:
        return {} if self._key is None else {"Authorization": f"Bearer {self._key}"}

    def sandbox(self, **asked: object) -> str:
        answer = self.ask("POST", "/v1/sandboxes", dict(asked))
        assert answer.status == 201, answer
        return str(answer.json["id"])

    def run(self, sandbox_id: str, code: str, language: str = "python") -> dict[str, Any]:
        cell = {"code": code, "language": language, "format": "json"}
        answer = self.ask("POST", f"/v1/sandboxes/{sandbox_id}/exec", cell)
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.json
        return found


def encoded(path: str | bytes) -> str:
    return quote(os.fsencode(path), safe="")
