"""The engine's line to its broker (host folders) and to its holder (E1, where pods are made)."""

from __future__ import annotations

import array
import asyncio
import itertools
import os
import platform
import re
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramet.errors import HostNotCapable, LimitReached, RametError
from ramet.isolation import syscalls
from ramet.isolation.install_places import foreign_places
from ramet.isolation.launch import HELPER
from ramet.isolation.skeleton import GUEST_FOLDER, LIBRARY_FOLDER, system_folders, write_skeleton
from ramet.isolation.threadwork import finish
from ramet.protocol.specs import Interpreter

_PACKET_BYTES = 65536
_POD_SECONDS = 20.0
_OVERLAY_TAKES_SHIFTED_IDS = (5, 19)


@dataclass(frozen=True, slots=True)
class PodHandle:
    """What the holder gives us of a new pod; the descriptors are ours to close."""

    init_pid: int  # in E1's numbering
    init_pidfd: int
    root: int
    upper: int  # the tmpfs with the writable folders of its overlays
    shm: int  # its /dev/shm


@dataclass(frozen=True, slots=True)
class Layout:
    """The file tree of pods for one interpreter: a skeleton, and which tree goes where."""

    skeleton: int
    places: tuple[tuple[str, int, str], ...]  # "bind" or "overlay", tree number, path
    layer: int | None = (
        None  # a tree below all that is written, with a folder for each overlay that has something there
    )

    def overlays(self) -> tuple[tuple[str, str], ...]:
        """The folder in a pod's writable layer, and the path at which it shows; native/pod.c chooses the names."""
        shown = ((f"tree{i}", path) for i, (kind, _, path) in enumerate(self.places) if kind == "overlay")
        return (("root", "/"), *shown)


def send_packet(channel: socket.socket, text: str, descriptors: Sequence[int] = ()) -> None:
    """One packet with descriptors."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    channel.sendmsg([os.fsencode(text)], rights)


def receive_packet(channel: socket.socket) -> tuple[str, list[int]]:
    """The opposite."""
    data, descriptors, _, _ = socket.recv_fds(channel, _PACKET_BYTES, 4)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return os.fsdecode(data), list(descriptors)


def _discard(packet: tuple[str, list[int]]) -> None:
    for descriptor in packet[1]:
        os.close(descriptor)


class Broker:
    """Asks the launcher, which sees the host, for folders as detached mounts. The launcher answers in order."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._turn = asyncio.Lock()

    async def open(self, path: str, kind: str) -> int:
        """A mount of a host folder. `kind`: "r" read-only, "w" writable, "p" read-only with the host's own ids."""
        async with self._turn:
            # To its end: two requests under way could take each other's answers, and a sandbox see a wrong folder.
            answer, descriptors = await finish(asyncio.to_thread(self._ask, f"tree {kind} {path}"), _discard)
        if answer == "ok" and len(descriptors) == 1:
            return descriptors[0]
        _discard((answer, descriptors))
        raise RametError(
            f"cannot show {path} in a sandbox: {answer.removeprefix('error ')}",
            hint="is it there, and readable for you?",
        )

    def _ask(self, request: str) -> tuple[str, list[int]]:
        send_packet(self._channel, request)
        return receive_packet(self._channel)


class Holder:
    """pid 1 of E1. One per engine."""

    def __init__(self, channel: socket.socket, pid: int, broker: Broker, guest: str) -> None:
        self._channel = channel
        self.pidfd = os.pidfd_open(pid)
        self._broker = broker
        self._guest = guest
        self._trees: dict[tuple[str, str], asyncio.Task[int]] = {}
        self._tree_numbers = itertools.count()
        self._tree_turn = asyncio.Lock()
        self._tree_answer: asyncio.Future[str] | None = None
        self._to_detach: list[int] = []
        self._pods: dict[str, asyncio.Future[PodHandle]] = {}
        self._pod_numbers = itertools.count(1)
        self._layouts: dict[Interpreter, asyncio.Task[Layout]] = {}
        asyncio.get_running_loop().add_reader(channel.fileno(), self._on_packet)

    @classmethod
    async def start(cls, broker: Broker, guest: str) -> Holder:
        """Make E1."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            done = await asyncio.to_thread(
                subprocess.run,
                [str(HELPER), "holder", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={},
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            raise HostNotCapable(
                f"cannot make the namespaces of sandboxes: {done.stderr.strip()}", hint="run: ramet doctor"
            )
        answer, _ = await asyncio.to_thread(receive_packet, ours)
        if answer != "ready":
            raise HostNotCapable(
                f"cannot make the base of sandboxes: {answer.removeprefix('error ')}", hint="run: ramet doctor"
            )
        ours.setblocking(False)
        return cls(ours, int(done.stdout), broker, guest)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._channel.close()
        os.close(self.pidfd)

    def _on_packet(self) -> None:
        try:
            text, descriptors = receive_packet(self._channel)
        except BlockingIOError:
            return
        except OSError:
            text, descriptors = "", []
        if not text:
            self._fail_all(RametError("the holder of the sandboxes' namespaces ended"))
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            return
        kind, _, rest = text.partition(" ")
        number, _, detail = rest.partition(" ")
        waiting = self._pods.pop(number, None)
        if waiting is not None:
            if kind == "pod" and len(descriptors) == 4 and not waiting.done():
                waiting.set_result(PodHandle(int(detail), *descriptors))
                return
            for descriptor in descriptors:
                os.close(descriptor)
            if not waiting.done():
                # A pod without its descriptors: the kernel had no numbers left for them in this process.
                waiting.set_exception(_pod_error(detail if kind == "error" else "Too many open files"))
            return
        for descriptor in descriptors:
            os.close(descriptor)
        # A pod that failed may be told of twice, by its init and by its builder: that is no answer about a tree.
        about_a_tree = text == "ok" or text.startswith(("error attach ", "error unknown request"))
        if about_a_tree and self._tree_answer is not None and not self._tree_answer.done():
            self._tree_answer.set_result(text)

    def _fail_all(self, error: RametError) -> None:
        for pod in self._pods.values():
            if not pod.done():
                pod.set_exception(error)
        self._pods.clear()
        if self._tree_answer is not None and not self._tree_answer.done():
            self._tree_answer.set_exception(error)

    async def make_pod(self, layout: Layout, lines: Sequence[str], descriptors: Sequence[int]) -> PodHandle:
        """A pod with this file tree; `lines` and `descriptors` as `native/pod.h` says."""
        number = str(next(self._pod_numbers))
        places = [f"{kind} {tree} {path}" for kind, tree, path in layout.places]
        lowest = [f"layer {layout.layer}"] if layout.layer is not None else []
        future: asyncio.Future[PodHandle] = asyncio.get_running_loop().create_future()
        self._pods[number] = future
        try:
            send_packet(
                self._channel,
                "\n".join(["pod", f"id {number}", f"skeleton {layout.skeleton}", *places, *lines, *lowest]),
                descriptors,
            )
        except OSError:
            del self._pods[number]
            raise
        try:
            return await asyncio.wait_for(future, _POD_SECONDS)
        except TimeoutError as error:
            raise RametError(f"a pod was not ready within {_POD_SECONDS:.0f} seconds") from error

    async def layout(self, interpreter: Interpreter) -> Layout:
        """The layout for an interpreter; concurrent calls share the work."""
        if interpreter not in self._layouts:
            self._layouts[interpreter] = asyncio.create_task(self._make_layout(interpreter))
        try:
            return await asyncio.shield(self._layouts[interpreter])
        except Exception:
            self._layouts.pop(interpreter, None)
            raise

    async def _make_layout(self, interpreter: Interpreter) -> Layout:
        # The system's own folders keep the host's ids: what only root may read there stays unreadable.
        places = [("bind", await self._tree(path, "p"), path) for path in system_folders()]
        kind = "r" if _kernel() >= _OVERLAY_TAKES_SHIFTED_IDS else "p"
        places += [("overlay", await self._tree(path, kind), path) for path in interpreter.trees]
        places.append(("bind", await self._tree(self._guest, "r"), GUEST_FOLDER))
        if interpreter.library is not None:
            places.append(("bind", await self._tree(interpreter.library, "r"), LIBRARY_FOLDER))
        folder = tempfile.mkdtemp(prefix="skeleton-")
        os.chmod(folder, 0o755)
        await asyncio.to_thread(write_skeleton, folder, interpreter)
        skeleton = await self._attach(syscalls.clone_tree(folder))
        layout = Layout(skeleton, tuple(places))
        return replace(layout, layer=await self._install_places(layout, interpreter, kind))

    async def _install_places(self, layout: Layout, interpreter: Interpreter, kind: str) -> int | None:
        """The number of a layer by which packages can be installed where others own the interpreter, if they do."""
        wanted: list[str] = []
        for name, path in layout.overlays():
            if path in interpreter.trees:
                tree = await self._broker.open(path, kind)
                try:
                    wanted += [f"{name}/{place}" for place in foreign_places(tree, interpreter.version)]
                finally:
                    os.close(tree)
        if not wanted:
            return None
        folder = tempfile.mkdtemp(prefix="places-")
        for place in wanted:
            os.makedirs(f"{folder}/{place}", mode=0o755)
        return await self._attach(syscalls.clone_tree(folder))

    async def _tree(self, path: str, kind: str) -> int:
        key = (path, kind)
        if key not in self._trees:
            self._trees[key] = asyncio.create_task(self._open_and_attach(path, kind))
        try:
            return await asyncio.shield(self._trees[key])
        except Exception:
            self._trees.pop(key, None)
            raise

    async def _open_and_attach(self, path: str, kind: str) -> int:
        return await self._attach(await self._broker.open(path, kind))

    async def attach_layer(self, mount: int) -> int:
        """Show a sealed layer to the builders of pods; its number."""
        return await self._attach(os.dup(mount))

    def detach_tree(self, number: int) -> None:
        """Pods that were made with it keep it. From any thread."""
        self._to_detach.append(number)
        self._send_detachments()

    def _send_detachments(self) -> None:
        while self._to_detach:
            try:
                send_packet(self._channel, f"untree {self._to_detach[0]}")
            except BlockingIOError:
                return  # with the next request
            except OSError:
                pass  # no holder, no trees
            self._to_detach.pop(0)

    async def _attach(self, mount: int) -> int:
        async with self._tree_turn:
            self._send_detachments()
            number = next(self._tree_numbers)
            self._tree_answer = asyncio.get_running_loop().create_future()
            try:
                send_packet(self._channel, f"tree {number}", [mount])
                answer = await asyncio.wait_for(self._tree_answer, _POD_SECONDS)
            finally:
                os.close(mount)
                self._tree_answer = None
        if answer != "ok":
            raise RametError(f"cannot attach a folder to the sandboxes' base: {answer.removeprefix('error ')}")
        return number


def _kernel() -> tuple[int, int]:
    major, minor = re.findall(r"\d+", platform.release())[:2]
    return int(major), int(minor)


def _pod_error(detail: str) -> RametError:
    if re.search(r"No space left|Too many|Cannot allocate|Resource temporarily", detail):
        return LimitReached(
            f"cannot make a pod: {detail}",
            hint="the host has no room for another sandbox: close some, or raise its limits",
        )
    return HostNotCapable(f"cannot make a pod: {detail}", hint="run: ramet doctor")
