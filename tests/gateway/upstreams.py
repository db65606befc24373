"""A model that says what a test wrote down for it: a real HTTP server that speaks the Messages API."""

from __future__ import annotations

import itertools
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ramet.doors.gateway.kinds import BASH, CODE, EDITOR

_numbers = itertools.count(1)

Block = dict[str, Any]


@dataclass
class Asked:
    """A request that the upstream got."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.body["messages"]
        return found

    @property
    def tool_names(self) -> list[str]:
        return [str(tool.get("name")) for tool in self.body.get("tools", [])]


Reply = Callable[["Exchange"], None]


@dataclass
class Exchange:
    """One request, and the means to answer it in any way."""

    asked: Asked
    handler: BaseHTTPRequestHandler
    server: ScriptedUpstream

    @property
    def stream(self) -> bool:
        return self.asked.body.get("stream") is True

    def json(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        self.send(status, json.dumps(body).encode(), {"content-type": "application/json", **(headers or {})})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.handler.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.handler.send_header(name, value)
        self.handler.end_headers()
        self.handler.wfile.write(body)

    def begin_stream(self) -> None:
        self.handler.send_response(200)
        self.handler.send_header("content-type", "text/event-stream")
        self.handler.send_header("connection", "close")
        self.handler.end_headers()
        self.handler.close_connection = True

    def write(self, data: bytes) -> None:
        self.handler.wfile.write(data)
        self.handler.wfile.flush()

    def event(self, event: dict[str, Any]) -> None:
        self.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())


@dataclass
class ScriptedUpstream:
    """Owns the server. ``script`` holds what is said next; ``asked`` what was asked so far."""

    url: str = ""
    script: deque[Reply] = field(default_factory=deque)
    asked: list[Asked] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def will(self, *replies: Reply) -> None:
        self.script.extend(replies)

    @property
    def samples(self) -> list[Asked]:
        return [one for one in self.asked if one.path.partition("?")[0] == "/v1/messages"]

    def reset(self) -> None:
        self.script.clear()
        self.asked.clear()
        self.released.clear()


def says(
    *blocks: Block | str, stop_reason: str | None = None, usage: dict[str, Any] | None = None, **more: Any
) -> Reply:
    """An answer of the model."""
    content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    called = any(block["type"] == "tool_use" for block in content)
    reason = stop_reason or ("tool_use" if called else "end_turn")
    counts = usage or {"input_tokens": 10, "output_tokens": 5}

    def reply(exchange: Exchange) -> None:
        message = {
            "id": f"msg_{next(_numbers)}",
            "type": "message",
            "role": "assistant",
            "model": exchange.asked.body["model"],
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": counts,
            **more,
        }
        if not exchange.stream:
            exchange.json(200, message, {"request-id": "req_of_the_upstream"})
            return
        exchange.begin_stream()
        for event in events_of(message):
            exchange.event(event)

    return reply


def events_of(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """As a model streams it: in small pieces."""
    usage = message["usage"]
    empty = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield {"type": "message_start", "message": empty}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        kind = block["type"]
        if kind == "text":
            yield {"type": "content_block_start", "index": index, "content_block": {**block, "text": ""}}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        elif kind == "thinking":
            bare = {"type": "thinking", "thinking": "", "signature": ""}
            yield {"type": "content_block_start", "index": index, "content_block": bare}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif kind == "tool_use":
            yield {"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}}
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *_pieces(text))]
        else:
            yield {"type": "content_block_start", "index": index, "content_block": block}
            deltas = []
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


def _pieces(text: str, size: int = 7) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def tool_use(name: str, **given: Any) -> Block:
    return {"type": "tool_use", "id": f"toolu_upstream{next(_numbers):016}", "name": name, "input": given}


def python(code: str) -> Block:
    return tool_use(CODE, code=code)


def bash(command: str) -> Block:
    return tool_use(BASH, command=command)


def editor(**given: Any) -> Block:
    return tool_use(EDITOR, **given)


def fails(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> Reply:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_of_the_upstream"}
    return lambda exchange: exchange.json(status, body, headers)


def raw(status: int, body: bytes, content_type: str) -> Reply:
    return lambda exchange: exchange.send(status, body, {"content-type": content_type})


def streams(*pieces: bytes | dict[str, Any]) -> Reply:
    """Exactly this, and then the end."""

    def reply(exchange: Exchange) -> None:
        exchange.begin_stream()
        for piece in pieces:
            exchange.write(piece) if isinstance(piece, bytes) else exchange.event(piece)

    return reply


def stalls(*pieces: bytes | dict[str, Any]) -> Reply:
    """The same, and then nothing more until the test has ended."""

    def reply(exchange: Exchange) -> None:
        streams(*pieces)(exchange)
        exchange.server.released.wait(60)

    return reply


def is_silent(exchange: Exchange) -> None:
    exchange.server.released.wait(60)
    exchange.handler.close_connection = True


@contextmanager
def running_upstream() -> Iterator[ScriptedUpstream]:
    upstream = ScriptedUpstream()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers.get("content-length", 0))
            self._answer(json.loads(self.rfile.read(size) or b"{}"))

        def do_GET(self) -> None:
            self._answer({})

        def _answer(self, body: dict[str, Any]) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, body)
            upstream.asked.append(asked)
            exchange = Exchange(asked, self, upstream)
            if not upstream.script:
                exchange.json(500, {"type": "error", "error": {"type": "api_error", "message": "the script is over"}})
                return
            try:
                upstream.script.popleft()(exchange)
            except ConnectionError:
                self.close_connection = True  # the gateway has gone, which some tests are about

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    upstream.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield upstream
    finally:
        upstream.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
