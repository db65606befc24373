"""A client of an engine with a scripted machine, over a real connection."""

from __future__ import annotations

import asyncio
import socket

from ramet.engine.calls.connection import ClientConnection
from ramet.protocol import calls
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode
from tests.unit.scripted_engine import Engine
from tests.waiting import until


class Client:
    """The other end of a connection."""

    def __init__(self, engine: Engine) -> None:
        self._socket, self._theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._connection = ClientConnection(self._theirs, engine.registry)
        self._decoder = FrameDecoder(FROM_ENGINE)
        self._frames: list[Frame] = []

    async def ask(self, kind: int, **header: object) -> Frame:
        self.send(kind, **header)
        return await self.answer()

    def send(self, kind: int, **header: object) -> None:
        self._socket.sendall(encode(kind, header))

    def run(self, sandbox_id: str, stream: bool = False, **more: object) -> None:
        self.send(calls.RUN, sandbox=sandbox_id, language="python", timeout=None, stream=stream, **more)

    async def answers(self) -> list[Frame]:
        """All up to the final one."""
        found = [await self.answer()]
        while found[-1].kind not in calls.FINAL:
            found.append(await self.answer())
        return found

    async def answer(self) -> Frame:
        while not self._frames:
            async with asyncio.timeout(5):
                data = await asyncio.get_running_loop().sock_recv(self._socket, 65536)
            assert data, "the engine hung up"
            self._frames.extend(self._decoder.feed(data))
        frame = self._frames.pop(0)
        if frame.kind == calls.ERROR:
            raise calls.read_error(frame.header)
        return frame

    def readable(self) -> bool:
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def leave(self) -> None:
        self._socket.close()

    async def left(self) -> None:
        """Leave, and wait until the engine has seen it."""
        self.leave()
        await until(lambda: self._theirs.fileno() < 0)
