"""Bodies without processes, and the machine that makes them: the test plays the guest, over real sockets and pipes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.engine.seams import Prepare, Prepared, Session
from ramet.errors import ForkFailed, SandboxLost
from ramet.protocol import guest
from ramet.protocol.frames import TO_GUEST, Frame, FrameDecoder, encode
from ramet.protocol.values.differences import FileChange
from ramet.protocol.values.specs import Limits, MountSpec, TemplateSpec


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
        self.worked_seconds = 0.0
        self.prepared: Prepared | None = None
        self.owner = ""
        self.listens: list[str] = []
        self.taken_names: set[str] = set()
        self.taken_ports: set[int] = set()
        self.listen_gate: asyncio.Event | None = None
        self.listen_error: Exception | None = None
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

    async def refresh(self) -> None:
        pass

    async def revive(self) -> None:
        self.revivals += 1
        self._shut()
        self._open()

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._shut()
            os.close(self.root)

    async def open_terminal(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        folder: str | None,
        columns: int,
        rows: int,
        commands: str | None = None,
    ) -> Session:
        raise SandboxLost("a scripted body has no terminals")

    async def listen(self, name: str, backlog: int) -> socket.socket | None:
        """At a name of its own in the network of the test: ``address`` tells where that is."""
        self.listens.append(name)
        if self.listen_gate is not None:
            async with asyncio.timeout(5):
                await self.listen_gate.wait()
        if self.listen_error is not None:
            raise self.listen_error
        if name in self.taken_names:
            return None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(self.address(name))
        listener.listen(backlog)
        return listener

    async def listen_tcp(self, port: int, backlog: int) -> socket.socket | None:
        """On some port of the test's own loopback."""
        if port in self.taken_ports:
            return None
        listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        listener.setblocking(False)
        return listener

    async def bind_udp(self, port: int) -> socket.socket | None:
        return None if port in self.taken_ports else socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    async def plain_socket(self) -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    async def netlink(self, family: int) -> socket.socket:
        raise SandboxLost("a scripted body has no network to change")

    def address(self, name: str) -> str:
        return f"\0ramet-test-{os.getpid()}-{id(self)}-{name}"

    def usage(self) -> Mapping[str, int]:
        return {}

    def walls(self) -> Mapping[str, object]:
        return {}

    ancestors = 0

    def processor_seconds(self) -> float:
        return self.worked_seconds

    def unique_bytes(self) -> int:
        return 100

    # The guest's side, for the test

    async def next_frame(self) -> Frame:
        while not self._frames:
            async with asyncio.timeout(5):
                data = await asyncio.get_running_loop().sock_recv(self._guest, 65536)
            self._frames.extend(self._decoder.feed(data))
        return self._frames.pop(0)

    def silent(self) -> bool:
        """Nothing was sent to the guest that the test has not seen."""
        try:
            return not self._frames and not self._guest.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True

    def send(self, data: bytes) -> None:
        self._guest.sendall(data)

    def done(self, cell_id: int, exit_code: int = 0, interrupted: bool = False) -> None:
        header = {"id": cell_id, "exit_code": exit_code, "error": None, "interrupted": interrupted}
        self.send(encode(guest.DONE, header))

    async def configured(self, kind: int = guest.CONFIGURE, error: str | None = None) -> Frame:
        """Take a frame of this kind, and say that it was carried out."""
        frame = await self.next_frame()
        assert frame.kind == kind
        self.send(encode(guest.CONFIGURED, {"error": error}))
        return frame

    def die(self, death: ScriptedDeath) -> None:
        if not self.death.done():
            self.death.set_result(death)


@dataclass(frozen=True)
class ScriptedForked:
    bodies: list[ScriptedBody]
    pause_seconds: float = 0.001
    file_bytes: int = 10


class ScriptedFrozen:
    """Implements ``ramet.engine.seams.Frozen``."""

    pause_seconds = 0.001
    file_bytes = 10

    def __init__(self, of: ScriptedBody) -> None:
        self.of = of
        self.shadow = id(self)
        self.closed = False
        self.gives_way = False
        self.killed = False

    faithful = True

    def give_way(self) -> None:
        self.gives_way = True

    def allow(self, memory_bytes: int) -> None:
        pass

    async def usable(self) -> bool:
        return not self.closed and not self.killed

    async def close(self) -> None:
        assert not self.closed
        self.closed = True


class ScriptedJournal:
    """Implements ``ramet.engine.seams.Journal``."""

    def __init__(self) -> None:
        self.about: Mapping[str, object] = {}
        self.cells: tuple[tuple[int, str], ...] = ()
        self.changes: tuple[tuple[int, str], ...] = ()
        self.has_ended = False

    def introduce(self, about: Mapping[str, object]) -> None:
        self.about, self.has_ended = about, False

    def begun(self, cell_id: int, code: bytes) -> None:
        self.cells += ((cell_id, code.decode()),)

    def ended(self) -> None:
        self.has_ended = True

    def changed(self, number: int, what: str) -> None:
        self.changes += ((number, what),)

    def written(self, cells: int, changes: int) -> None:
        pass

    def contents(self) -> ScriptedJournal:
        return self

    def close(self, remove: bool = False) -> None:
        pass


class ScriptedMachine:
    """Implements ``ramet.engine.seams.Machine``. Holds at each step whose name is in ``gates`` until that is set.

    ``reached`` has the name of each step that was begun, held or not.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.bodies: list[ScriptedBody] = []
        self.left_open: list[ScriptedBody] = []
        self.snapshots: list[ScriptedFrozen] = []
        self.thawed_with: list[tuple[Limits | None, Sequence[MountSpec] | None]] = []
        self.kept_pids: list[bool] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.reached: list[str] = []
        self.failing: str | None = None
        self.changes: Sequence[FileChange] = ()
        self.point_bytes = 4096  # of each on disk
        self.based_on: list[str | None] = []
        self.whose: list[str] = []
        self.journal: dict[str, ScriptedJournal] = {}
        self.images: dict[str, tuple[ScriptedBody, Mapping[str, object]]] = {}

    def gate(self, step: str) -> asyncio.Event:
        return self.gates.setdefault(step, asyncio.Event())

    async def _pass(self, step: str) -> None:
        self.reached.append(step)
        if step in self.gates:
            async with asyncio.timeout(5):
                await self.gates[step].wait()
        if self.failing == step:
            raise ForkFailed(f"scripted to fail at {step}")

    def _body(self) -> ScriptedBody:
        self.bodies.append(ScriptedBody(self._root))
        return self.bodies[-1]

    def when_lost(self, callback: Callable[[str], None]) -> None:
        self.lose = callback

    async def template(self, spec: TemplateSpec) -> None:
        pass

    async def create(
        self,
        template: TemplateSpec,
        limits: Limits,
        mounts: Sequence[MountSpec],
        prepare: Prepare | None = None,
    ) -> ScriptedBody:
        return self._body()

    async def fork(
        self, body: ScriptedBody, count: int, keep_pid: bool, on_resumed: Callable[[], None]
    ) -> ScriptedForked:
        self.kept_pids.append(keep_pid)
        await self._pass("freeze")
        assert not body.closed
        on_resumed()
        await self._pass("thaw")
        return ScriptedForked([self._body() for _ in range(count)])

    async def freeze(self, body: ScriptedBody, keep_pid: bool, stay_stopped: bool = False) -> ScriptedFrozen:
        self.kept_pids.append(keep_pid)
        await self._pass("freeze")
        if stay_stopped:
            body.signal(signal.SIGSTOP)
        self.snapshots.append(ScriptedFrozen(body))
        return self.snapshots[-1]

    async def thaw(
        self, frozen: ScriptedFrozen, limits: Limits | None, mounts: Sequence[MountSpec] | None
    ) -> ScriptedBody:
        await self._pass("thaw")
        assert not frozen.closed
        self.thawed_with.append((limits, mounts))
        return self._body()

    async def save_image(self, frozen: ScriptedFrozen, name: str, about: Mapping[str, object]) -> int:
        await self._pass("save_image")
        self.images[name] = frozen.of, about
        return 4096

    keeps_images = True

    async def write_point(
        self, frozen: ScriptedFrozen, whose: str, about: Mapping[str, object], base: str | None, bytes_at_most: int
    ) -> tuple[str, int]:
        self.based_on.append(base)
        self.whose.append(whose)
        await self._pass("write_point")
        assert not frozen.closed
        name = f"past-{whose}-{len(self.based_on)}"
        self.images[name] = frozen.of, about
        return name, self.point_bytes

    def stop_writing_point(self) -> None:
        self.reached.append("stop_writing_point")

    async def point_sizes(self) -> Mapping[str, int]:
        return {name: self.point_bytes for name in self.images if name.startswith("past-")}

    async def open_journal(self, name: str) -> ScriptedJournal:
        return self.journal.setdefault(name, ScriptedJournal())

    async def journals(self) -> list[tuple[str, ScriptedJournal, bool]]:
        return [(name, journal, True) for name, journal in self.journal.items()]

    async def image_figures(self) -> Mapping[str, object]:
        return {}

    async def image_names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.images if name.startswith(prefix))

    async def image_bytes(self, owner_part: str) -> int:
        return sum(1 << 20 for name in self.images if f"-{owner_part}-" in name)

    async def image_id(self, name: str) -> str | None:
        return f"img_{id(self.images[name]):x}" if name in self.images else None

    async def forget_image(self, name: str) -> None:
        self.images.pop(name, None)

    async def load_image(self, name: str) -> tuple[ScriptedFrozen, Mapping[str, object]] | None:
        await self._pass("load_image")
        if name not in self.images:
            return None
        of, about = self.images[name]
        self.snapshots.append(ScriptedFrozen(of))
        return self.snapshots[-1], {**about, "image_id": await self.image_id(name)}

    async def diff_files(
        self, one: ScriptedBody, other: ScriptedBody, paths: tuple[str, ...] | None, owner: str
    ) -> Sequence[FileChange]:
        await self._pass("diff")
        return self.changes

    async def open_folder(self, path: str, writable: bool) -> int:
        return os.open(path, os.O_PATH | os.O_DIRECTORY)

    async def close(self) -> None:
        """Of a body that nobody has closed before it is told: a real machine would have had to end it."""
        self.left_open = [body for body in self.bodies if not body.closed]
        for body in self.left_open:
            await body.close()

    def facts(self) -> Mapping[str, object]:
        return {}
