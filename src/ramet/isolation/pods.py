"""Pods and the pool that keeps some ready: namespaces, file tree, control groups and pipes, but no code running."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ramet.errors import LimitReached, SandboxLost
from ramet.isolation.cgroups import NONE, Delegation, PodGroup
from ramet.isolation.holder import Broker, Holder, Layout, PodHandle, receive_packet, send_packet
from ramet.isolation.layers import FileImage, PodFiles
from ramet.isolation.threadwork import finish
from ramet.protocol.specs import Interpreter, Limits, MountSpec

_INODES_PER_MIB = 64  # a writable layer of 4 GiB has room for 262 144 files
_SHM_SHARE = 4  # /dev/shm may hold this part of the disk limit
_CLOSE_SECONDS = 10.0
_INIT_SECONDS = 10.0  # a pod's init answers within milliseconds, or after a second when processes take long to end
_MADE_AT_ONCE = 8
_NAMESPACES = ("user", "mnt", "net", "ipc", "uts", "cgroup", "pid")  # in the order of native/snapshot.h
_LOW = 2  # fewer are not enough for whoever goes on asking: then the next is made at once
_MOST_READY = 16  # pods kept for forks that are expected
_EXPECTED_SECONDS = 60.0
_REFILL_AFTER_SECONDS = 0.01  # whoever took a pod is about to use it: making the next at once would slow that down


@dataclass(slots=True)
class Ends:
    """The engine's ends of a REPL's three lines, and the sandbox's while they are on their way to the pod's init."""

    control: socket.socket
    stdout: int
    stderr: int
    theirs: list[int] = field(default_factory=list)
    control_inode: int = 0  # of the sandbox's end, by which a fork knows it

    @classmethod
    def make(cls) -> Ends:
        ours, guest = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        inode = os.fstat(guest.fileno()).st_ino
        made = cls(ours, -1, -1, [guest.detach()], inode)
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
        self,
        handle: PodHandle,
        files: PodFiles,
        command: socket.socket,
        ends: Ends,
        group: PodGroup | None,
        limits: Limits,
    ) -> None:
        self.handle = handle
        self.files = files
        self.ends = ends
        self.group = group
        self.limits = limits
        # What a REPL that is thawed into it must end up in; compared from outside before it runs.
        self.init = _number(handle.init_pidfd)
        self.namespaces = self.namespaces_of(self.init)
        self._command = command
        self._turn = asyncio.Lock()
        self._answered: asyncio.Future[None] | None = None  # while a command is under way
        self._closed = False

    @staticmethod
    def namespaces_of(pid: int) -> tuple[int, ...]:
        """Of a process in the engine's numbering, to be compared with the pod's."""
        return tuple(os.stat(f"/proc/{pid}/ns/{name}").st_ino for name in _NAMESPACES)

    @property
    def root(self) -> int:
        return self.handle.root

    @property
    def upper(self) -> int:
        return self.files.upper

    @property
    def shm(self) -> int:
        return self.files.shm

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

    async def listen(self, name: str, backlog: int) -> socket.socket | None:
        """A unix socket that listens in the pod's own network, at an abstract name. None: the name is taken there."""
        return await self._socket(f"unix {name} {backlog}")

    async def listen_tcp(self, port: int, backlog: int) -> socket.socket | None:
        """A TCP socket that listens on the pod's loopback. None: the port is taken there."""
        return await self._socket(f"tcp {port} {backlog}")

    async def bind_udp(self, port: int) -> socket.socket | None:
        """A UDP socket on the pod's loopback. None: the port is taken there."""
        return await self._socket(f"udp {port}")

    async def plain_socket(self) -> socket.socket:
        """A TCP socket of the pod's network that is not connected: whoever connects it reaches what listens there."""
        return _there(await self._socket("plain"))

    async def netlink(self, family: int) -> socket.socket:
        """A netlink socket of the pod's network, made by one who may change it."""
        return _there(await self._socket(f"netlink {family}"))

    async def _socket(self, what: str) -> socket.socket | None:
        try:
            # To its end, whoever waits: its answer must not be taken for that to the next question.
            answer, descriptors = await finish(self._tell(f"L {what}", []), _discard)
        except OSError as error:
            raise SandboxLost(f"cannot make a socket in the sandbox: its pod has ended ({error.strerror})") from None
        if answer == "ok" and len(descriptors) == 1:
            return socket.socket(fileno=descriptors[0])
        _discard((answer, descriptors))
        if answer == "error taken":
            return None
        why = answer.removeprefix("error ") or "its pod has ended"
        raise LimitReached(f"cannot make a socket in the sandbox: {why}")

    async def _tell(self, text: str, descriptors: Sequence[int]) -> tuple[str, list[int]]:
        async with self._turn:
            send_packet(self._command, text, descriptors)
            loop = asyncio.get_running_loop()
            answered = self._answered = loop.create_future()
            loop.add_reader(self._command, _settle, answered)
            try:
                async with asyncio.timeout(_INIT_SECONDS):
                    await answered
                return receive_packet(self._command)
            except TimeoutError:
                self._hang_up()  # a late answer must not be taken for that to the next question
                raise SandboxLost(f"the pod's init did not answer within {_INIT_SECONDS:.0f} seconds") from None
            finally:
                self._answered = None
                if self._command.fileno() >= 0:
                    loop.remove_reader(self._command)

    def _hang_up(self) -> None:
        if self._answered is not None:
            asyncio.get_running_loop().remove_reader(self._command)
            if not self._answered.done():
                self._answered.set_exception(SandboxLost("the pod was closed"))
        self._command.close()

    async def close(self) -> None:
        """The init leaves, the kernel ends what is left in its pid namespace, then the groups can go."""
        if self._closed:
            return
        self._closed = True
        self.ends.close()
        self._hang_up()
        await wait_for_end(self.handle.init_pidfd, _CLOSE_SECONDS)
        if self.group is not None:
            for _ in range(50):
                if self.group.remove():
                    break
                await asyncio.sleep(0.01)  # a dead process leaves its group a moment after its parent heard of it
        os.close(self.handle.init_pidfd)
        os.close(self.handle.root)
        self.files.close()


def _number(pidfd: int) -> int:
    """The process behind a pidfd, in the engine's numbering."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as lines:
        return int(next((line.split()[1] for line in lines if line.startswith("Pid:")), "-1"))


def _there(made: socket.socket | None) -> socket.socket:
    if made is None:
        raise SandboxLost(
            "cannot make a socket in the sandbox: its pod says that an address is taken, and none was given"
        )
    return made


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _discard(packet: tuple[str, list[int]]) -> None:
    for descriptor in packet[1]:
        os.close(descriptor)


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
        self._expected = 0
        self._expected_until = 0.0
        self._shrinking: asyncio.Task[None] | None = None
        self._makers = asyncio.Semaphore(_MADE_AT_ONCE)
        self._waiting = 0  # callers whom making things ahead would slow down
        self._disturbed_until = 0.0
        self._dead: list[asyncio.Task[None]] = []  # pods that died in the pool, on their way out
        self._numbers = itertools.count(1)
        self._pool: dict[tuple[Interpreter, Limits], list[Pod]] = {}
        self._refills: dict[tuple[Interpreter, Limits], asyncio.Task[None]] = {}
        self._closed = False

    async def take(
        self,
        interpreter: Interpreter,
        limits: Limits,
        mounts: Sequence[MountSpec],
        image: FileImage | None = None,
    ) -> Pod:
        """A pod from the pool, or a new one; one that begins with the files of an image is always new."""
        if image is not None and not image.is_empty:
            return await self.make(interpreter, limits, mounts, image=image)
        pod = self.take_ready(interpreter, limits, mounts)
        if pod is None:
            pod = await self.make(interpreter, limits, mounts)
            self._refill((interpreter, limits), _REFILL_AFTER_SECONDS)
        return pod

    def take_ready(self, interpreter: Interpreter, limits: Limits, mounts: Sequence[MountSpec]) -> Pod | None:
        """A pod that waits in the pool, if there is one."""
        pods = self._pool.setdefault((interpreter, limits), [])
        while pods and not mounts:
            pod = pods.pop()
            if pod.alive:
                self._refill((interpreter, limits), _REFILL_AFTER_SECONDS)
                return pod
            self._dead.append(asyncio.create_task(pod.close()))  # the host's kernel may kill anybody
        return None

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
            while len(pods) < self._wanted() and not self._closed:
                if self._waiting or (len(pods) >= _LOW and not self.idle):
                    await asyncio.sleep(_REFILL_AFTER_SECONDS / 2)
                    continue
                pods.append(await self.make(*key, ()))

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Inside, and for a moment afterwards, nothing is made ahead of time."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._disturbed_until = asyncio.get_running_loop().time() + _REFILL_AFTER_SECONDS

    @property
    def idle(self) -> bool:
        """Whether nobody has asked to be undisturbed for a moment: whoever got a sandbox is about to use it."""
        return not self._waiting and asyncio.get_running_loop().time() >= self._disturbed_until

    async def wait_until_idle(self) -> None:
        while not self.idle:
            await asyncio.sleep(_REFILL_AFTER_SECONDS / 2)

    def _wanted(self) -> int:
        expected = self._expected if asyncio.get_running_loop().time() < self._expected_until else 0
        return max(self._ready, expected)

    def expect(self, count: int) -> None:
        """Somebody asks for so many pods of one kind at once and may do so again: keep as many ready, for a while."""
        self._expected = max(self._wanted(), min(count, _MOST_READY))
        self._expected_until = asyncio.get_running_loop().time() + _EXPECTED_SECONDS
        if not self._closed and (self._shrinking is None or self._shrinking.done()):
            self._shrinking = asyncio.create_task(self._shrink())

    async def _shrink(self) -> None:
        """Back to the usual number when nobody has asked for more for a while."""
        while (left := self._expected_until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(left)
        for pods in tuple(self._pool.values()):
            while len(pods) > self._wanted():
                await pods.pop().close()

    async def make(
        self,
        interpreter: Interpreter,
        limits: Limits,
        mounts: Sequence[MountSpec],
        boot: bool = False,
        image: FileImage | None = None,
    ) -> Pod:
        layout = await self._holder.layout(interpreter)
        opened: list[int] = []
        try:
            for mount in mounts:
                opened.append(await self._broker.open(mount.source, "w" if mount.writable else "r"))
            async with self._makers:
                return await self._make(layout, limits, mounts, opened, boot, image)
        finally:
            for descriptor in opened:
                os.close(descriptor)

    async def _make(
        self,
        layout: Layout,
        limits: Limits,
        mounts: Sequence[MountSpec],
        opened: Sequence[int],
        boot: bool,
        image: FileImage | None,
    ) -> Pod:
        layers = await image.attach(self._holder) if image is not None else ()
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
            images: list[tuple[str, int]] = []
            if image is not None:
                copies = (("files", image.files), ("shm", image.shm))
                images = [(kind, descriptor) for kind, descriptor in copies if descriptor is not None]
            inodes = max(4096, limits.disk_bytes // (1 << 20) * _INODES_PER_MIB)
            lines = [
                f"boot {int(boot)}",
                f"given {len(ends.theirs) + len(doors)}",
                f"upper {limits.disk_bytes} {inodes}",
                f"shm {max(1 << 20, limits.disk_bytes // _SHM_SHARE)}",
                *(f"layer {number}" for number in layers),
                *(f"image {kind}" for kind, _ in images),
                *(f"mount {mount.target}" for mount in mounts),
            ]
            given = [theirs.fileno(), *ends.theirs, *doors, *(descriptor for _, descriptor in images), *opened]
            handle = await self._holder.make_pod(layout, lines, given)
            undo.pop_all()
        ends.sent()
        files = PodFiles(handle.upper, handle.shm, layout.overlays(), image)
        return Pod(handle, files, ours, ends, group, limits)

    def group_count(self) -> int:
        """How many group files the init of each pod holds."""
        return len(self._delegation.paths())

    async def close(self) -> None:
        self._closed = True
        if self._shrinking is not None:
            self._shrinking.cancel()
        for task in self._refills.values():
            task.cancel()
        await asyncio.gather(*self._refills.values(), return_exceptions=True)
        pods = [pod for waiting in self._pool.values() for pod in waiting]
        self._pool.clear()
        await asyncio.gather(*self._dead, return_exceptions=True)
        await asyncio.gather(*(pod.close() for pod in pods), return_exceptions=True)
