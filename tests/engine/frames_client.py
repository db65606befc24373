"""Talks frames to the engine of this process: what a server does, without the server."""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from ramet.errors import SandboxClosed
from ramet.isolation.files import interpreter
from ramet.protocol import calls
from ramet.protocol.checks import MIB
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode
from ramet.protocol.values.specs import Lifetime, Limits, SandboxSpec, TemplateSpec
from ramet.transport import embedded

_SECONDS = 60.0


class Line:
    """One connection to the engine: calls one after the other."""

    def __init__(self) -> None:
        self._socket = embedded.default_engine().connect(blocking=True)
        self._socket.settimeout(_SECONDS)
        self._decoder = FrameDecoder(FROM_ENGINE)
        self._frames: list[Frame] = []

    def send(self, kind: int, blob: bytes = b"", **header: object) -> None:
        self.send_frame(kind, header, blob)

    def send_frame(self, kind: int, header: Mapping[str, object], blob: bytes = b"") -> None:
        self._socket.sendall(encode(kind, header, blob))

    def frame(self) -> Frame:
        """The next one, whatever it is."""
        while not self._frames:
            data = self._socket.recv(1 << 16)
            assert data, "the engine hung up"
            self._frames.extend(self._decoder.feed(data))
        return self._frames.pop(0)

    def frames(self) -> list[Frame]:
        """All up to the final one; an error is raised."""
        found = [self.frame()]
        while found[-1].kind not in calls.FINAL:
            found.append(self.frame())
        if found[-1].kind == calls.ERROR:
            raise calls.read_error(found[-1].header)
        return found

    def ask(self, kind: int, blob: bytes = b"", **header: object) -> dict[str, Any]:
        """The header of the final answer."""
        self.send(kind, blob, **header)
        return dict(self.frames()[-1].header)

    def silent(self) -> bool:
        """Nothing has come that was not taken."""
        return not self._frames and not select.select([self._socket], [], [], 0)[0]

    def hung_up(self) -> bool:
        """The engine closes the connection, soon; what it still says is thrown away."""
        self._socket.settimeout(_SECONDS)
        try:
            while self._socket.recv(1 << 20):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True

    def push(self, data: bytes) -> bool:
        """Send it; False if that cannot be done within a second, and then the connection is of no use any more."""
        self._socket.settimeout(1.0)
        try:
            self._socket.sendall(data)
        except TimeoutError:
            return False
        return True

    def narrow(self) -> None:
        """Let little wait on its way to us."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def close(self) -> None:
        self._socket.close()


def run(line: Line, sandbox: str, code: str, stream: bool = False, **more: object) -> dict[str, Any]:
    begin(line, sandbox, code, stream, **more)
    return dict(line.frames()[-1].header)


def begin(line: Line, sandbox: str, code: str, stream: bool = False, **more: object) -> None:
    line.send(calls.RUN, code.encode(), sandbox=sandbox, language="python", timeout=None, stream=stream, **more)


def spec(owner: str = "", persistent: bool = False, **lifetime: float) -> SandboxSpec:
    template = TemplateSpec("default", interpreter.find(sys.executable), (), builtin=True)
    limits = Limits(memory_bytes=1024 * MIB, pids=256, cpus=1.0, disk_bytes=1024 * MIB)
    return SandboxSpec(template, limits, lifetime=Lifetime(**lifetime), owner=owner, persistent=persistent)


def create(line: Line, owner: str = "", persistent: bool = False, **lifetime: float) -> str:
    # One whose Python dies starts empty again.
    line.send_frame(calls.CREATE, replace(spec(owner, persistent, **lifetime), recover="fresh").header())
    return str(line.frames()[-1].header["id"])


def until(condition: Callable[[], bool]) -> None:
    end = monotonic() + _SECONDS
    while not condition():
        assert monotonic() < end, "it did not come to pass"
        select.select([], [], [], 0.005)


def ended(line: Line, sandbox: str) -> SandboxClosed | None:
    """What the engine says of a sandbox that has ended."""
    try:
        line.ask(calls.INFO, sandbox=sandbox)
    except SandboxClosed as error:
        return error
    return None


def execution(number: int) -> str:
    return f"exe_{number:032x}"
