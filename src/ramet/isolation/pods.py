"""Pods and the pool that keeps some ready: namespaces, file tree, control groups and pipes, but no code running."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from ramet.errors import SandboxLost
from ramet.isolation.cgroups import NONE, Delegation, PodGroup
from ramet.isolation.holder import Broker, Holder, Layout, PodHandle, send_packet
from ramet.isolation.threadwork import finish
from ramet.protocol.specs import Interpreter, Limits, MountSpec

_INODES_PER_MIB = 64  # a writable layer of 4 GiB has room for 262 144 files
_SHM_SHARE = 4  # /dev/shm may hold this part of the disk limit
_CLOSE_SECONDS = 10.0
_INIT_SECONDS = 10.0  # a pod's init answers within milliseconds, or after a second when processes take long to end
_REFILL_AFTER_SECONDS = 0.01  # whoever took a pod is about to use it: making the next at once would slow that down


@dataclass(slots=True)
class Ends:
    """The engine's ends of a REPL's three lines, and the sandbox's while they are on their way to the pod's init."""

    control: socket.socket
    stdout: int
    stderr: int
    theirs: list[int] = field(default_factory=list)

    @classmethod
    def make(cls) -> Ends:
        ours, guest = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        made = cls(ours, -1, -1, [guest.detach()])
        try:
            made.stdout, out_write = os.pipe2(os.O_CLOEXEC)
            made.theirs.append(out_write)
            made.stderr, error_write = os.pipe2(os.O_CLOEXEC)
            made.theirs.append(error_write)
        except OSError:  # no descriptors left
            made.close()
            raise
        for descriptor in (made.stdout, made.stderr):
            os.set_blocking(descriptor, False)
        return made

    def sent(self) -> None:
        """The pod has its copies."""
        for descriptor in self.theirs:
            os.close(descriptor)
        self.theirs = []

    def close(self) -> None:
        self.sent()
        self.control.close()
        for name in ("stdout", "stderr"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)


class Pod:
    """The walls of one sandbox. Owned by one sandbox, or by the pool while it waits."""

    def __init__(
        self, handle: PodHandle, command: socket.socket, ends: Ends, group: PodGroup | None, limits: Limits
    ) -> None:
        self.handle = handle
        self.ends = ends
        self.group = group
        self.limits = limits
        self._command = command
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def root(self) -> int:
        return self.handle.root

    @property
    def alive(self) -> bool:
        """Whether its init is there: a dead one's number may be another pod's by now."""
        ended = select.poll()
        ended.register(self.handle.init_pidfd, select.POLLIN)
        return not ended.poll(0)

    async def empty(self) -> None:
        """End every process but the init, and give it new lines for the next REPL."""
        self.ends.close()
        self.ends = Ends.make()
        await self._tell("K", [])
        await self._tell("F", self.ends.theirs)
        self.ends.sent()

    def let_go(self) -> None:
        """A REPL has taken its lines; the init drops its copies. It does not answer to this."""
        with contextlib.suppress(OSError):  # an init that is gone has taken the REPL along, which its owner will see
            send_packet(self._command, "C")

    async def _tell(self, text: str, descriptors: Sequence[int]) -> None:
        async with self._turn:
            send_packet(self._command, text, descriptors)
            try:
                async with asyncio.timeout(_INIT_SECONDS):
                    await asyncio.get_running_loop().sock_recv(self._command, 16)
            except TimeoutError:
                self._command.close()  # a late answer must not be taken for that to the next question
                raise SandboxLost(f"the pod's init did not answer within {_INIT_SECONDS:.0f} seconds") from None

    async def close(self) -> None:
        """The init leaves, the kernel ends what is left in its pid namespace, then the groups can go."""
        if self._closed:
            return
        self._closed = True
        self.ends.close()
        self._command.close()
        await wait_for_end(self.handle.init_pidfd, _CLOSE_SECONDS)
        if self.group is not None:
            for _ in range(50):
                if self.group.remove():
                    break
                await asyncio.sleep(0.01)  # a dead process leaves its group a moment after its parent heard of it
        os.close(self.handle.init_pidfd)
        os.close(self.handle.root)


async def wait_for_end(pidfd: int, seconds: float) -> bool:
    """True when the process behind `pidfd` ended within `seconds`."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
        return True
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)


class PodMaker:
    """Makes pods, and keeps a few of the usual kind ready."""

    def __init__(self, holder: Holder, broker: Broker, delegation: Delegation, ready: int) -> None:
        self._holder = holder
        self._broker = broker
        self._delegation = delegation
        self._ready = ready
        self._numbers = itertools.count(1)
        self._pool: dict[tuple[Interpreter, Limits], list[Pod]] = {}
        self._refills: dict[tuple[Interpreter, Limits], asyncio.Task[None]] = {}
        self._closed = False

    async def take(self, interpreter: Interpreter, limits: Limits, mounts: Sequence[MountSpec]) -> Pod:
        """A pod from the pool, or a new one."""
        key = (interpreter, limits)
        pods = self._pool.setdefault(key, [])
        pod = None
        while pods and not mounts and pod is None:
            pod = pods.pop()
            if not pod.alive:  # the host's kernel may kill anybody
                await pod.close()
                pod = None
        if pod is None:
            pod = await self.make(interpreter, limits, mounts)
        self._refill(key, _REFILL_AFTER_SECONDS)
        return pod

    def _refill(self, key: tuple[Interpreter, Limits], after_seconds: float) -> None:
        if not self._closed and (key not in self._refills or self._refills[key].done()):
            self._refills[key] = asyncio.create_task(self._fill(key, after_seconds))

    async def fill(self, interpreter: Interpreter, limits: Limits) -> None:
        """Wait until the pool has its full number."""
        self._pool.setdefault((interpreter, limits), [])
        self._refill((interpreter, limits), 0.0)
        await self._refills[interpreter, limits]

    async def _fill(self, key: tuple[Interpreter, Limits], after_seconds: float) -> None:
        pods = self._pool[key]
        await asyncio.sleep(after_seconds)
        # What cannot be made ahead is tried again, and told, when somebody asks for it.
        with contextlib.suppress(Exception):
            while len(pods) < self._ready and not self._closed:
                pods.append(await self.make(*key, ()))

    async def make(
        self, interpreter: Interpreter, limits: Limits, mounts: Sequence[MountSpec], boot: bool = False
    ) -> Pod:
        layout = await self._holder.layout(interpreter)
        opened: list[int] = []
        try:
            for mount in mounts:
                opened.append(await self._broker.open(mount.source, "w" if mount.writable else "r"))
            return await self._make(layout, limits, mounts, opened, boot)
        finally:
            for descriptor in opened:
                os.close(descriptor)

    async def _make(
        self, layout: Layout, limits: Limits, mounts: Sequence[MountSpec], opened: Sequence[int], boot: bool
    ) -> Pod:
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as sent:
            group = None
            if self._delegation != NONE and not boot:
                name = f"pod-{next(self._numbers)}"
                work = asyncio.to_thread(PodGroup.create, self._delegation, name, limits)
                group = await finish(work, PodGroup.remove)
                undo.callback(group.remove)
            doors = group.open_doors() if group is not None else []
            for descriptor in doors:
                sent.callback(os.close, descriptor)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(ours.close)
            sent.callback(theirs.close)
            ours.setblocking(False)
            ends = Ends.make()
            undo.callback(ends.close)
            inodes = max(4096, limits.disk_bytes // (1 << 20) * _INODES_PER_MIB)
            lines = [
                f"boot {int(boot)}",
                f"given {len(ends.theirs) + len(doors)}",
                f"upper {limits.disk_bytes} {inodes}",
                f"shm {max(1 << 20, limits.disk_bytes // _SHM_SHARE)}",
                *(f"mount {mount.target}" for mount in mounts),
            ]
            handle = await self._holder.make_pod(layout, lines, [theirs.fileno(), *ends.theirs, *doors, *opened])
            undo.pop_all()
        ends.sent()
        return Pod(handle, ours, ends, group, limits)

    def group_count(self) -> int:
        """How many group files the init of each pod holds."""
        return len(self._delegation.paths())

    async def close(self) -> None:
        self._closed = True
        for task in self._refills.values():
            task.cancel()
        await asyncio.gather(*self._refills.values(), return_exceptions=True)
        pods = [pod for waiting in self._pool.values() for pod in waiting]
        self._pool.clear()
        await asyncio.gather(*(pod.close() for pod in pods), return_exceptions=True)
