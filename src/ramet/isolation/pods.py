"""Pods: namespaces, file tree, control groups and pipes, but no code running."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from ramet.errors import NO_ROOM_ERRNOS, LimitReached, SandboxLost
from ramet.isolation.cgroups import NONE, Delegation, PodGroup
from ramet.isolation.holder import Broker, Holder, Layout, PodHandle, receive_packet, send_packet
from ramet.isolation.layers import FileImage, PodFiles
from ramet.isolation.pod_pool import PodKind, PodPool
from ramet.isolation.shown_folders import ShownFolders
from ramet.isolation.syscalls import open_in_root
from ramet.isolation.threadwork import finish
from ramet.isolation.walks import Walks
from ramet.protocol.specs import Interpreter, Limits, MountSpec

_INODES_PER_MIB = 64  # a writable layer of 4 GiB has room for 262 144 files
_SHM_SHARE = 4  # /dev/shm may hold this part of the disk limit, and never more than the memory limit
_CLOSE_SECONDS = 10.0
_INIT_SECONDS = 10.0  # a pod's init answers within milliseconds, or after a second when processes take long to end
_MADE_AT_ONCE = 8
_NAMESPACES = ("user", "mnt", "net", "ipc", "uts", "cgroup", "pid")  # in the order of native/snapshot.h


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
        shown: ShownFolders | None = None,
        direct: tuple[tuple[str, str], ...] = (),
        uncounted: tuple[str, ...] = (),
    ) -> None:
        self.uncounted = uncounted  # as in ``PodMaker``
        self.shown = shown or ShownFolders()
        self.direct = direct  # folders of the host that it shows as they are, and why
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
        self.shown.close()
        self.files.close()


def _number(pidfd: int) -> int:
    """The process behind a pidfd, in the engine's numbering."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as lines:
        return int(next((line.split()[1] for line in lines if line.startswith("Pid:")), "-1"))


def _find_shown(root: int, paths: Sequence[str]) -> ShownFolders:
    """Before any code runs in the pod, which could put something else in the place of a folder above."""
    found: list[int] = []
    for path in paths:
        with contextlib.suppress(OSError):  # no descriptor left: it is shown all the same
            found.append(open_in_root(root, path, os.O_PATH | os.O_DIRECTORY))
    return ShownFolders(found)


def _there(made: socket.socket | None) -> socket.socket:
    if made is None:
        raise SandboxLost(
            "cannot make a socket in the sandbox: its pod reports that the address is in use, though none was given"
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


async def _nothing() -> bool:
    return False


class PodMaker:
    """Makes pods, and keeps a few ready in its pool. ``on_crowded`` gives up what others hold that was made ahead."""

    def __init__(
        self, holder: Holder, broker: Broker, delegation: Delegation, ready: int, walks: Walks | None = None
    ) -> None:
        self._holder = holder
        self._walks = walks or Walks()
        self._broker = broker
        self._delegation = delegation
        self._makers = asyncio.Semaphore(_MADE_AT_ONCE)
        self.pool: PodPool[Pod] = PodPool(lambda kind: self._make_one(*kind), ready)
        self.on_crowded: Callable[[], Awaitable[bool]] = _nothing
        self._numbers = itertools.count(1)

    @property
    def uncounted(self) -> tuple[str, ...]:
        """System calls for shared memory that no limit of this host counts: sandboxes are refused them."""
        if "memory" in self._delegation.folders:
            return ()
        return ("memfd_create",) if self._holder.bounds_ipc else ("memfd_create", "shmget", "semget", "msgget")

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
            self.pool.refill(PodKind(interpreter, limits))
        return pod

    def take_ready(self, interpreter: Interpreter, limits: Limits, mounts: Sequence[MountSpec]) -> Pod | None:
        """A pod that waits in the pool, if there is one. None of them shows folders of the host."""
        return None if mounts else self.pool.take(PodKind(interpreter, limits))

    async def give_up_ready(self) -> bool:
        """The host has no room: close what was made ahead. Whether that was anything."""
        others = await self.on_crowded()
        return await self.pool.give_up() or others

    async def make(
        self,
        interpreter: Interpreter,
        limits: Limits,
        mounts: Sequence[MountSpec],
        boot: bool = False,
        image: FileImage | None = None,
    ) -> Pod:
        """A new pod. Where the host has no room for it, what waits in the pool makes room, and it is tried again."""
        try:
            return await self._make_one(interpreter, limits, mounts, boot, image)
        except (OSError, LimitReached) as error:
            if isinstance(error, OSError) and error.errno not in NO_ROOM_ERRNOS:
                raise
            if not await self.give_up_ready():
                raise
        return await self._make_one(interpreter, limits, mounts, boot, image)

    async def _make_one(
        self,
        interpreter: Interpreter,
        limits: Limits,
        mounts: Sequence[MountSpec] = (),
        boot: bool = False,
        image: FileImage | None = None,
    ) -> Pod:
        layout = await self._holder.layout(interpreter)
        opened: list[tuple[str, int]] = []  # lines of native/pod.h, each with its descriptor
        try:
            for mount in mounts:
                if mount.writable:
                    opened.append((f"mount {mount.target}", await self._broker.open(mount.source, "w")))
                    continue
                parts = await self._broker.open_shown(mount.source)
                opened += [(f"show-mount {mount.target.rstrip('/')}{place}", part) for place, part in parts]
            async with self._makers:
                return await self._make(layout, limits, opened, boot, image)
        finally:
            for _, descriptor in opened:
                os.close(descriptor)

    async def _make(
        self,
        layout: Layout,
        limits: Limits,
        opened: Sequence[tuple[str, int]],
        boot: bool,
        image: FileImage | None,
    ) -> Pod:
        layers = await image.attach(self._holder, self._walks) if image is not None else ()
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
                f"shm {max(1 << 20, min(limits.disk_bytes // _SHM_SHARE, limits.memory_bytes))}",
                f"memory {limits.memory_bytes}",
                *(f"layer {number}" for number in layers),
                *(f"image {kind}" for kind, _ in images),
                *(line for line, _ in opened),
            ]
            given = [theirs.fileno(), *ends.theirs, *doors, *(descriptor for _, descriptor in (*images, *opened))]
            handle = await self._holder.make_pod(layout, lines, given)
            undo.pop_all()
        ends.sent()
        files = PodFiles(handle.upper, handle.shm, layout.overlays(), image)
        shown = [line.removeprefix("show-mount ") for line, _ in opened if line.startswith("show-mount ")]
        folders = _find_shown(handle.root, shown)
        return Pod(handle, files, ours, ends, group, limits, folders, layout.direct, self.uncounted)

    @property
    def counts_memory(self) -> bool:
        """Whether each pod has a group that counts its memory."""
        return "memory" in self._delegation.folders

    def group_count(self) -> int:
        """How many group files the init of each pod holds."""
        return len(self._delegation.paths())

    async def close(self) -> None:
        await self.pool.close()
