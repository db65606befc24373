"""A body without a process: the test plays the guest, over a real socket and real pipes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ramet.protocol import guest
from ramet.protocol.frames import TO_GUEST, Frame, FrameDecoder, encode


@dataclass(frozen=True)
class ScriptedDeath:
    exit_code: int | None
    signal: int | None
    out_of_memory: bool = False


class ScriptedBody:
    """Implements ``ramet.engine.seams.Body``; what the engine did to it is in ``signals`` and ``revivals``."""

    def __init__(self, root: Path) -> None:
        self.root = os.open(root, os.O_PATH | os.O_DIRECTORY)
        self.signals: list[int] = []
        self.revivals = 0
        self.closed = False
        self._open()

    def _open(self) -> None:
        self.pid = 1000 + self.revivals
        self.control, self._guest = socket.socketpair()
        self.control.setblocking(False)
        self._guest.setblocking(False)
        self.stdout, self.guest_stdout = os.pipe2(os.O_NONBLOCK)
        self.stderr, self.guest_stderr = os.pipe2(os.O_NONBLOCK)
        self.death: asyncio.Future[ScriptedDeath] = asyncio.get_running_loop().create_future()
        self._decoder = FrameDecoder(TO_GUEST)
        self._frames: list[Frame] = []

    def _shut(self) -> None:
        self.control.close()
        self._guest.close()
        for descriptor in (self.stdout, self.guest_stdout, self.stderr, self.guest_stderr):
            os.close(descriptor)

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def kill(self) -> None:
        self.signals.append(9)
        self.die(ScriptedDeath(None, 9))

    async def revive(self) -> None:
        self.revivals += 1
        self._shut()
        self._open()

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._shut()
            os.close(self.root)

    def usage(self) -> Mapping[str, int]:
        return {}

    def walls(self) -> Mapping[str, object]:
        return {}

    # The guest's side, for the test

    async def next_frame(self) -> Frame:
        while not self._frames:
            async with asyncio.timeout(5):
                data = await asyncio.get_running_loop().sock_recv(self._guest, 65536)
            self._frames.extend(self._decoder.feed(data))
        return self._frames.pop(0)

    def send(self, data: bytes) -> None:
        self._guest.sendall(data)

    def done(self, cell_id: int, exit_code: int = 0, interrupted: bool = False) -> None:
        header = {"id": cell_id, "exit_code": exit_code, "error": None, "interrupted": interrupted}
        self.send(encode(guest.DONE, header))

    def die(self, death: ScriptedDeath) -> None:
        if not self.death.done():
            self.death.set_result(death)
