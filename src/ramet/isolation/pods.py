"""Pods: the namespaces, file tree, control groups and pipes of a sandbox, with no user code running in them yet."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import NamedTuple

from ramet.errors import NO_ROOM_ERRNOS, LimitReached, SandboxLost
from ramet.isolation.files.layers import FileImage, PodFiles
from ramet.isolation.files.shown_folders import ShownFolders
from ramet.isolation.files.walks import Walks
from ramet.isolation.holder import Broker, Holder, Layout, PodHandle, receive_packet, send_packet
from ramet.isolation.kernel.cgroups import NONE, Delegation, PodGroup
from ramet.isolation.kernel.syscalls import open_in_root
from ramet.isolation.pool import REFILL_AFTER_SECONDS, Pool, PoolBounds
from ramet.isolation.thread_work import finish
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import Interpreter, Limits, MountSpec
from ramet_guest.wire import NAMESPACES

_INODES_PER_MIB = 64  # so a writable layer of 4 GiB holds up to 262 144 files
_SHM_SHARE = 4  # /dev/shm gets this fraction of the disk limit, but never more than the memory limit
_CLOSE_SECONDS = 10.0
_INIT_SECONDS = 10.0  # an init answers within milliseconds, or within a second when processes are slow to die
# Pods under construction at a time. A guess: more builders would mostly wait for the kernel's locks on mounts and
# network namespaces, and hold descriptors meanwhile.
_MADE_AT_ONCE = 8
# ``of_a_kind`` is the maker's to say. A fork of many takes that many pods at once, and often forks again.
_POOL = PoolBounds(
    of_a_kind=0, kinds=4, in_all=32, of_a_kind_expected=16, enough=2, refill_after_seconds=REFILL_AFTER_SECONDS
)


class PodKind(NamedTuple):
    """Pods that can stand in for one another. Limits are fixed when a pod is made: the caller chooses the kind."""

    interpreter: Interpreter
    limits: Limits


@dataclass(slots=True)
class Ends:
    """The engine's ends of a REPL's control socket, stdout and stderr.

    `theirs` are the sandbox's ends. They belong to the engine only until the pod's init has received its copies.
    """

    control: socket.socket
    stdout: int
    stderr: int
    theirs: list[int] = field(default_factory=list)
    # Inode of the sandbox's end, by which a fork recognises the control socket among the REPL's descriptors.
    control_inode: int = 0

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
        except OSError:  # EMFILE or ENFILE: release what was opened so far
            made.close()
            raise
        for descriptor in (made.stdout, made.stderr):
            os.set_blocking(descriptor, False)
        return made

    def sent(self) -> None:
        """Close our copies of the sandbox's ends: the pod's init now has its own.

        A copy left open here would keep the pipes from ever reaching end-of-file when the REPL dies.
        """
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
    """The walls of one sandbox. A sandbox owns it, or the pool while it is unused."""

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
        self.uncounted = uncounted  # see `PodMaker.uncounted`
        self.shown = shown or ShownFolders()
        self.direct = direct  # (path, reason) of host folders that the pod shows directly, without an overlay
        self.handle = handle
        self.files = files
        self.ends = ends
        self.group = group
        self.limits = limits
        # A REPL thawed into this pod must end up in exactly these namespaces. The engine compares them from outside
        # before the REPL runs its first instruction.
        self.init = _number(handle.init_pidfd)
        self.namespaces = self.namespaces_of(self.init)
        self._command = command
        # The init answers commands in order and without ids. Two commands in flight could each read the other's answer,
        # so only one may be.
        self._turn = asyncio.Lock()
        # Resolved by the reader when the command in flight is answered.
        self._answered: asyncio.Future[None] | None = None
        self._closed = False

    @staticmethod
    def namespaces_of(pid: int) -> tuple[int, ...]:
        """Inode numbers of a process's namespaces (pid in the engine's numbering), to compare with the pod's own."""
        return tuple(os.stat(f"/proc/{pid}/ns/{name}").st_ino for name in NAMESPACES)

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
        """Whether the init still runs. Once it has ended, the kernel may give its pid to another process."""
        # A pidfd becomes readable when its process has ended.
        ended = select.poll()
        ended.register(self.handle.init_pidfd, select.POLLIN)
        return not ended.poll(0)

    async def empty(self) -> None:
        """Kill every process in the pod except its init, and give the init fresh pipes for the next REPL."""
        self.ends.close()
        self.ends = Ends.make()
        # Kill first, and wait for the answer: the init answers K only when all are gone, or after a second. A thaw
        # recreates threads under their old ids, which a dying process could still hold.
        await self._tell("K", [])
        await self._tell("F", self.ends.theirs)
        self.ends.sent()

    def let_go(self) -> None:
        """Have the init close its copies of the pipes once a REPL has them. The init does not answer this command.

        With copies in the init, the engine would not see end-of-file when the REPL closes its own.
        """
        # A dead init has taken the REPL with it, and the sandbox notices that by itself.
        with contextlib.suppress(OSError):
            send_packet(self._command, "C")

    async def listen(self, name: str, backlog: int) -> socket.socket | None:
        """Listen on a unix socket at an abstract name in the pod's network. None: the name is in use there.

        Raises SandboxLost when the pod has ended, LimitReached when the kernel has no room for another socket.
        """
        return await self._socket(f"unix {name} {backlog}")

    async def listen_tcp(self, port: int, backlog: int) -> socket.socket | None:
        """Listen on a TCP port of the pod's loopback. None: the port is in use there. Raises as `listen`."""
        return await self._socket(f"tcp {port} {backlog}")

    async def bind_udp(self, port: int) -> socket.socket | None:
        """Bind a UDP socket to a port of the pod's loopback. None: the port is in use there. Raises as `listen`."""
        return await self._socket(f"udp {port}")

    async def plain_socket(self) -> socket.socket:
        """Make an unconnected TCP socket in the pod's network, with which the engine connects to servers there."""
        return _there(await self._socket("plain"))

    async def netlink(self, family: int) -> socket.socket:
        """Make a netlink socket with which the engine changes the pod's network.

        The kernel asks for CAP_NET_ADMIN over that network namespace twice: of the process that opened the socket, here
        the init, and of the one that sends on it, here the engine.
        """
        return _there(await self._socket(f"netlink {family}"))

    async def _socket(self, what: str) -> socket.socket | None:
        try:
            # Run to the end even if our caller is cancelled: an answer left in the socket would be read as the answer
            # to the next command.
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
            # The future exists before the reader is added, and the reader only resolves it. The packet stays in the
            # socket until we receive it below, in this task.
            answered = self._answered = loop.create_future()
            loop.add_reader(self._command, _settle, answered)
            try:
                async with asyncio.timeout(_INIT_SECONDS):
                    await answered
                return receive_packet(self._command)
            except TimeoutError:
                self._hang_up()  # a late answer would be read as the answer to the next command, so give the pod up
                raise SandboxLost(f"the pod's init did not answer within {_INIT_SECONDS:.0f} seconds") from None
            finally:
                self._answered = None
                # `_hang_up` closes the socket while we wait here and has removed the reader already.
                if self._command.fileno() >= 0:
                    loop.remove_reader(self._command)

    def _hang_up(self) -> None:
        """Close the command socket and fail the command in flight. The init exits at the end of that socket."""
        if self._answered is not None:
            # Remove the reader before closing: the loop would otherwise watch a descriptor number that the next open()
            # reuses.
            asyncio.get_running_loop().remove_reader(self._command)
            if not self._answered.done():
                self._answered.set_exception(SandboxLost("the pod was closed"))
        self._command.close()

    async def close(self) -> None:
        """End the init; the kernel then kills the rest of its pid namespace. Afterwards remove the control groups."""
        # Sandbox, pool and failure paths may all call this. The flag is set before the first await, so one of them does
        # it.
        if self._closed:
            return
        self._closed = True
        self.ends.close()
        self._hang_up()
        # rmdir of a cgroup fails with EBUSY while a process is in it, so wait for the end of pid 1 first. The kernel
        # reports it only when every other process of the namespace is gone.
        await wait_for_end(self.handle.init_pidfd, _CLOSE_SECONDS)
        if self.group is not None:
            for _ in range(50):
                if self.group.remove():
                    break
                await asyncio.sleep(0.01)  # an exiting task leaves its cgroup shortly after its pidfd becomes readable
        os.close(self.handle.init_pidfd)
        os.close(self.handle.root)
        self.shown.close()
        self.files.close()


def _number(pidfd: int) -> int:
    """The pid behind a pidfd, in the engine's numbering. -1: the process has been reaped."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as lines:
        return int(next((line.split()[1] for line in lines if line.startswith("Pid:")), "-1"))


def _find_shown(root: int, paths: Sequence[str]) -> ShownFolders:
    """Open each folder of the host that the pod shows, as a descriptor of its mount.

    This runs before any code does: later, a sandbox could rename a parent folder and lead the path to another mount.
    """
    found: list[int] = []
    for path in paths:
        # Out of descriptors: the folder is shown, but changes on the host appear there late.
        with contextlib.suppress(OSError):
            found.append(open_in_root(root, path, os.O_PATH | os.O_DIRECTORY))
    return ShownFolders(found)


def _there(made: socket.socket | None) -> socket.socket:
    """The socket, for requests that name no address and therefore cannot find it in use."""
    if made is None:
        raise SandboxLost(
            "cannot make a socket in the sandbox: its pod reports that the address is in use, though none was given"
        )
    return made


def _settle(future: asyncio.Future[None]) -> None:
    """Resolve the future once: the loop calls a reader again as long as its descriptor stays readable."""
    if not future.done():
        future.set_result(None)


def _discard(packet: tuple[str, list[int]]) -> None:
    for descriptor in packet[1]:
        os.close(descriptor)


async def wait_for_end(pidfd: int, seconds: float) -> bool:
    """Wait for the process behind `pidfd` to end. Returns whether it did so within `seconds`.

    A loop keeps one reader per descriptor, so only one task may watch a `pidfd` at a time.
    """
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
    """Makes pods and keeps a few ready in its pool.

    `on_crowded` is called when the host runs out of room. It closes sandboxes that others made ahead, and returns
    whether there were any.
    """

    def __init__(
        self, holder: Holder, broker: Broker, delegation: Delegation, ready: int, walks: Walks | None = None
    ) -> None:
        self._holder = holder
        self._walks = walks or Walks()
        self._broker = broker
        self._delegation = delegation
        self._makers = asyncio.Semaphore(_MADE_AT_ONCE)
        self.pool: Pool[PodKind, Pod] = Pool(lambda kind: self._make_one(*kind), _POOL._replace(of_a_kind=ready))
        self.on_crowded: Callable[[], Awaitable[bool]] = _nothing
        self._numbers = itertools.count(1)

    @property
    def uncounted(self) -> tuple[str, ...]:
        """System calls that give shared memory which no limit of this host counts. Sandboxes are refused these.

        Without a memory cgroup only rlimits are left, and they count private memory. System V objects are bounded
        anyway where the pod could write its ipc namespace's limits (Linux 6.9).
        """
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
        """Take a pod from the pool, or make one. A pod that starts with the files of an image is always made anew.

        Raises LimitReached when the host has no room, RametError when a mount cannot be shown.
        """
        if image is not None and not image.is_empty:
            return await self.make(interpreter, limits, mounts, image=image)
        pod = self.take_ready(interpreter, limits, mounts)
        if pod is None:
            pod = await self.make(interpreter, limits, mounts)
            self.pool.refill(PodKind(interpreter, limits))
        return pod

    def take_ready(self, interpreter: Interpreter, limits: Limits, mounts: Sequence[MountSpec]) -> Pod | None:
        """Take a pod from the pool, or None. Pods in the pool show no folders of the host."""
        return None if mounts else self.pool.take(PodKind(interpreter, limits))

    async def give_up_ready(self) -> bool:
        """Close what was made ahead, because the host has no room. Returns whether there was anything to close."""
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
        """Make a pod. When the host has no room, close what waits in the pool and try once more."""
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
        # Before the semaphore: the first layout for an interpreter takes long (it opens and attaches host folders), and
        # pods of other kinds must not wait for it.
        layout = await self._holder.layout(interpreter)
        opened: list[tuple[str, int]] = []  # lines for native/pod/pod.h, each with the descriptor that belongs to it
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
        # Layers are attached before anything is allocated: this may wait for a long merge.
        layers = await image.attach(self._holder, self._walks) if image is not None else ()
        # `undo` runs only if making fails. `sent` runs in both cases: the holder has its copies of these descriptors,
        # or never will.
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as sent:
            group = None
            if self._delegation != NONE and not boot:
                name = f"pod-{next(self._numbers)}"
                # In a thread, because mkdir in a cgroup hierarchy waits for kernel-wide locks. To the end, because a
                # thread cannot be cancelled, and the group that it makes would stay.
                work = asyncio.to_thread(PodGroup.create, self._delegation, name, limits)
                group = await finish(work, PodGroup.remove)
                undo.callback(group.remove)
            group_files = group.open_group_files() if group is not None else []
            for descriptor in group_files:
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
            # Empty files take nothing of a tmpfs's size but kernel memory all the same, so the inodes are bounded too.
            inodes = max(4096, limits.disk_bytes // (1 << 20) * _INODES_PER_MIB)
            lines = [
                f"boot {int(boot)}",
                f"given {len(ends.theirs) + len(group_files)}",
                f"upper {limits.disk_bytes} {inodes}",
                f"shm {max(1 << 20, min(limits.disk_bytes // _SHM_SHARE, limits.memory_bytes))}",
                f"memory {limits.memory_bytes}",
                *(f"layer {number}" for number in layers),
                *(f"image {kind}" for kind, _ in images),
                *(line for line, _ in opened),
            ]
            # In the order in which native/pod takes them: the init's command socket, what the init keeps, images,
            # mounts.
            given = [theirs.fileno(), *ends.theirs, *group_files, *(descriptor for _, descriptor in (*images, *opened))]
            handle = await self._holder.make_pod(layout, lines, given)
            # From here on the Pod owns all of it; `Pod.close` releases it.
            undo.pop_all()
        ends.sent()
        files = PodFiles(handle.upper, handle.shm, layout.overlays(), image)
        shown = [line.removeprefix("show-mount ") for line, _ in opened if line.startswith("show-mount ")]
        folders = _find_shown(handle.root, shown)
        return Pod(handle, files, ours, ends, group, limits, folders, layout.direct, self.uncounted)

    @property
    def counts_memory(self) -> bool:
        """Whether each pod has a cgroup that counts its memory."""
        return "memory" in self._delegation.folders

    async def close(self) -> None:
        await self.pool.close()
