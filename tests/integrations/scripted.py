"""A Messages API that says what a test wrote for it, and remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3]);"
PNG = b"\x89PNG\r\n\x1a\n"


def says(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}


def uses(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    blocks = [
        {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}
        for number, (name, given) in enumerate(calls)
    ]
    return {"content": blocks, "stop_reason": "tool_use"}


class ScriptedApi:
    """Owns the list of answers that are left, and the requests so far."""

    def __init__(self, url: str, answers: Sequence[dict[str, Any]]) -> None:
        self.url = url
        self.requests: list[dict[str, Any]] = []
        self._answers = list(answers)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        usage = {"input_tokens": 1, "output_tokens": 1}
        common = {"id": f"msg_{len(self.requests)}", "type": "message", "role": "assistant", "model": "scripted"}
        return {**common, "usage": usage, "stop_sequence": None, **self._answers.pop(0)}

    def told(self, number: int = -1) -> list[dict[str, Any]]:
        """The tool results in a request, the last one if no other is asked for."""
        content = self.requests[number]["messages"][-1]["content"]
        return [block for block in content if block["type"] == "tool_result"]


@contextmanager
def scripted_api(*answers: dict[str, Any]) -> Iterator[ScriptedApi]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = json.dumps(api.answer(request)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        api = ScriptedApi(f"http://127.0.0.1:{server.server_port}", answers)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()
