"""Both ends of tool calls for an engine with scripted bodies: code in a sandbox, and a client who answers."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from ramet.engine.cells.sandbox import Sandbox
from ramet.protocol import calls, guest
from ramet.protocol.frames import Bounds, Frame, FrameDecoder, encode
from ramet.protocol.tools import socket_frames
from ramet.protocol.tools.specs import ToolSpec, encode_tools
from tests.unit.scripted import ScriptedBody
from tests.unit.scripted_client import Client
from tests.unit.scripted_engine import Engine

_FROM_ENGINE = Bounds(header_bytes=1 << 20, blob_bytes=1 << 20)
USUAL = "ramet-tools"


def tool(name: str = "look", **more: Any) -> ToolSpec:
    return ToolSpec(name, "looks", {"type": "object"}, **more)


class Code:
    """Something in a sandbox that is connected to its tool socket."""

    def __init__(self, body: ScriptedBody, name: str = USUAL) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(body.address(name))
        except OSError:
            self.socket.close()
            raise
        self.socket.setblocking(False)
        self._decoder = FrameDecoder(_FROM_ENGINE)
        self._frames: list[Frame] = []

    async def call(self, name: str = "look", arguments: bytes = b"{}") -> None:
        await self.send(encode(socket_frames.CALL, {"tool": name, "accepts": []}, arguments))

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(5):
            await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def frame(self) -> Frame:
        while not self._frames:
            async with asyncio.timeout(5):
                data = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
            if not data:
                raise EOFError
            self._frames.extend(self._decoder.feed(data))
        return self._frames.pop(0)

    async def value(self) -> bytes:
        """The whole of an answer."""
        frame = await self.frame()
        assert (frame.kind, frame.header["outcome"]) == (socket_frames.ANSWER, "value")
        parts = [frame.blob]
        while frame.header["more"]:
            frame = await self.frame()
            assert frame.kind == socket_frames.MORE
            parts.append(frame.blob)
        return b"".join(parts)

    async def failure(self) -> tuple[object, object]:
        """Kind and message of an answer."""
        frame = await self.frame()
        assert (frame.kind, frame.header["outcome"], frame.header["more"]) == (socket_frames.ANSWER, "error", False)
        return frame.header["kind"], frame.header["message"]

    async def ended(self) -> bool:
        """The engine closes the connection, soon."""
        try:
            await self.frame()
        except (EOFError, ConnectionResetError):
            return True
        return False

    def silent(self) -> bool:
        try:
            return not self._frames and not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True

    def close(self) -> None:
        self.socket.close()


class ToolClient(Client):
    """A client whose cells call tools."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._engine = engine
        self.others: list[ToolClient] = []

    def post(self, frame_kind: int, blob: bytes = b"", /, **header: object) -> None:
        self._socket.sendall(encode(frame_kind, header, blob))

    async def post_much(self, frame_kind: int, blob: bytes, /, **header: object) -> Frame:
        """The same for what is too much to be sent at once; gives the answer."""
        return await self.post_raw(encode(frame_kind, header, blob))

    async def post_raw(self, data: bytes) -> Frame:
        async with asyncio.timeout(5):
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        return await self.answer()

    async def give(self, sandbox: Sandbox, *tools: ToolSpec) -> None:
        self.post(calls.SET_TOOLS, encode_tools(tools), sandbox=sandbox.id)
        assert (await self.answer()).header == {}

    async def begin(self, sandbox: Sandbox, body: ScriptedBody, **more: Any) -> int:
        """Run a cell, up to its beginning; gives its id."""
        self.run(sandbox.id, **{"tools": True, **more})
        return await begun(body)

    def other(self) -> ToolClient:
        """The same client over another connection."""
        self.others.append(ToolClient(self._engine))
        return self.others[-1]

    async def value(self, sandbox: Sandbox, call: object, data: bytes, **more: object) -> object:
        """Answer a call; tells whether that was taken."""
        other = self.other()
        other.post(calls.TOOL_ANSWER, data, sandbox=sandbox.id, call=call, outcome="value", more=False, **more)
        return (await other.answer()).header["taken"]

    async def failure(self, sandbox: Sandbox, call: object, kind: str, message: str) -> object:
        other = self.other()
        header = {"sandbox": sandbox.id, "call": call, "outcome": "error", "kind": kind, "message": message}
        other.post(calls.TOOL_ANSWER, more=False, **header)
        return (await other.answer()).header["taken"]

    async def called(self) -> Frame:
        frame = await self.answer()
        assert frame.kind == calls.TOOL_CALL, frame
        return frame

    async def result(self) -> list[tuple[object, ...]]:
        """What the result tells of tool calls, without times."""
        return rows(await self.answer())

    def leave(self) -> None:
        for other in self.others:
            other.leave()
        super().leave()


def rows(frame: Frame) -> list[tuple[object, ...]]:
    assert frame.kind == calls.RESULT
    found = calls.read_result(frame).tool_calls
    return [(one.name, one.arguments, one.outcome, one.message) for one in found]


async def begun(body: ScriptedBody) -> int:
    """The guest was given a cell; what comes before it is taken."""
    frame = await body.next_frame()
    while frame.kind != guest.RUN:
        frame = await body.next_frame()
    return int(str(frame.header["id"]))


async def told(body: ScriptedBody) -> tuple[object, list[str]]:
    """The guest is told of tools: the name of the socket, and theirs."""
    frame = await body.next_frame()
    assert frame.kind == guest.TOOLS
    return frame.header["socket"], [one["name"] for one in json.loads(frame.blob)]


class Scene:
    """A sandbox that was given tools, its client, and code in it."""

    def __init__(self, engine: Engine, client: ToolClient) -> None:
        self.engine = engine
        self.client = client
        self._codes: list[Code] = []

    async def set(self, *tools: ToolSpec) -> None:
        self.sandbox, self.body = await self.engine.used()
        await self.client.give(self.sandbox, *tools)

    async def begin(self, **more: object) -> int:
        return await self.client.begin(self.sandbox, self.body, **more)

    def code(self) -> Code:
        self._codes.append(Code(self.body))
        return self._codes[-1]

    async def called(self) -> tuple[Code, object]:
        """Code that waits for the answer to a call, and the id of that."""
        code = self.code()
        await code.call(arguments=b'{"n": 1}')
        return code, (await self.client.called()).header["call"]

    def close(self) -> None:
        for code in self._codes:
            code.close()
