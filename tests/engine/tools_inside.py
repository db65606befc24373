"""Tool calls frame by frame: what code in a sandbox does to make them, and what a client does to answer them."""

from __future__ import annotations

from typing import Any

from ramet.protocol import calls
from ramet.protocol.frames import Frame, encode
from ramet.protocol.tools.specs import ToolSpec, encode_tools
from tests.engine.frames_client import Line

# For a cell: a client of the tool socket in plain Python, that can also do what no honest one does.
INSIDE = """
import json, os, socket, struct, threading, time

def packed(kind, header, blob=b"", version=1):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<IBBI", 6 + len(text) + len(blob), version, kind, len(text)) + text + blob

class Tools:
    def __init__(self, name="ramet-tools"):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect("\\0" + name)
    def send(self, tool, blob=None, **arguments):
        data = json.dumps(arguments).encode() if blob is None else blob
        self.socket.sendall(packed(1, {"tool": tool, "accepts": ["npy"]}, data))
    def exactly(self, count):
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(min(count - len(data), 1 << 20))
            if not piece:
                raise EOFError(len(data))
            data += piece
        return bytes(data)
    def frame(self):
        length, version, kind, size = struct.unpack("<IBBI", self.exactly(10))
        header = json.loads(self.exactly(size))
        return kind, header, self.exactly(length - 6 - size)
    def answer(self):
        kind, header, blob = self.frame()
        assert kind == 2, kind
        parts, more = [blob], header["more"]
        while more:
            kind, last, blob = self.frame()
            assert kind == 3, kind
            parts.append(blob)
            more = last["more"]
        return header, b"".join(parts)
    def call(self, tool, blob=None, **arguments):
        self.send(tool, blob, **arguments)
        header, value = self.answer()
        if header["outcome"] == "value":
            return value
        return f"{header['kind']}: {header['message']}"
    def ended(self):
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
"""


def tool(name: str, **more: Any) -> ToolSpec:
    return ToolSpec(name, f"the tool {name}", {"type": "object", "properties": {}}, **more)


def give(line: Line, sandbox: str, *tools: ToolSpec, **more: object) -> None:
    assert line.ask(calls.SET_TOOLS, encode_tools(tools), sandbox=sandbox, **more) == {}


def begin(line: Line, sandbox: str, code: str, stream: bool = False, tools: bool = True, **more: object) -> None:
    header = {"sandbox": sandbox, "language": "python", "timeout": None, "stream": stream, "tools": tools, **more}
    line.send_frame(calls.RUN, header, code.encode())


def answer(line: Line, sandbox: str, call: object, value: bytes) -> object:
    """Whether it was taken."""
    return line.ask(calls.TOOL_ANSWER, value, sandbox=sandbox, call=call, outcome="value", more=False)["taken"]


def refuse(line: Line, sandbox: str, call: object, message: str, kind: str = "error") -> object:
    header = {"sandbox": sandbox, "call": call, "outcome": "error", "kind": kind, "message": message, "more": False}
    line.send_frame(calls.TOOL_ANSWER, header)
    return line.frames()[-1].header["taken"]


def next_call(line: Line) -> Frame:
    """The next call that code makes; all else is thrown away."""
    while True:
        frame = line.frame()
        assert frame.kind not in calls.FINAL, frame
        if frame.kind == calls.TOOL_CALL:
            return frame


def serve(line: Line, answers: Line, sandbox: str) -> Frame:
    """Answer all calls with their own arguments, up to the result."""
    while True:
        frame = line.frame()
        if frame.kind == calls.TOOL_CALL:
            answer(answers, sandbox, frame.header["call"], frame.blob)
        elif frame.kind == calls.ERROR:
            raise calls.read_error(frame.header)
        elif frame.kind == calls.RESULT:
            return frame


def records(frame: Frame) -> list[tuple[str, object, str, str | None]]:
    """What a result tells of its tool calls, without the times."""
    result = calls.read_result(frame)
    return [(one.name, one.arguments, one.outcome, one.message) for one in result.tool_calls]


def run(line: Line, answers: Line, sandbox: str, code: str, **more: Any) -> str:
    """What the cell printed; its calls are answered with their own arguments."""
    begin(line, sandbox, code, **more)
    result = calls.read_result(serve(line, answers, sandbox))
    assert result.stderr == "", result.stderr
    return result.stdout


def send_value(line: Line, sandbox: str, call: object, value: bytes) -> object:
    """Answer with a large value, in parts; tells whether it was taken."""
    parts = [value[start : start + calls.CHUNK_BYTES] for start in range(0, len(value), calls.CHUNK_BYTES)]
    line.send(calls.TOOL_ANSWER, parts[0], sandbox=sandbox, call=call, outcome="value", more=True)
    for part in parts[1:]:
        line.send(calls.CHUNK, part)
    line.send(calls.END)
    return line.frames()[-1].header["taken"]


def send_parts(line: Line, sandbox: str, call: object, count: int) -> int:
    """Begin an answer of so many bytes, and send what goes in while nobody reads it; gives how much that was."""
    line.send(calls.TOOL_ANSWER, sandbox=sandbox, call=call, outcome="value", more=True)
    part, sent = encode(calls.CHUNK, {}, bytes(calls.CHUNK_BYTES)), 0
    while sent < count and line.push(part):
        sent += len(part)
    return sent


def exists(line: Line, sandbox: str, path: str) -> bool:
    line.send(calls.STAT, sandbox=sandbox, path=path)
    return line.frame().kind == calls.ANSWER
