"""The engine's line to its broker (host folders) and to its holder (E1, where pods are made)."""

from __future__ import annotations

import array
import asyncio
import itertools
import os
import platform
import re
import socket
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramet.errors import HostNotCapable, LimitReached, RametError
from ramet.isolation import hints, syscalls
from ramet.isolation.install_places import foreign_places
from ramet.isolation.launch import HELPER
from ramet.isolation.skeleton import GUEST_FOLDER, LIBRARY_FOLDER, system_folders, write_skeleton
from ramet.isolation.threadwork import finish
from ramet.protocol.specs import Interpreter

_PACKET_BYTES = 65536
_POD_SECONDS = 20.0
_OVERLAY_TAKES_SHIFTED_IDS = (5, 19)
_MOST_MOUNTS_BELOW = 32  # a folder that is shown, counted together


@dataclass(frozen=True, slots=True)
class HostFolder:
    """A folder of the host as a detached mount, and what is mounted below it there."""

    mount: int
    below: tuple[str, ...]  # paths from the folder on, each with a slash in front


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder of the host that the builders of pods have, under a number."""

    number: int
    direct: str | None  # why pods show it as it is, and not through an overlay


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
    places: tuple[tuple[str, int, str], ...]  # "bind", "show" or "overlay" (native/pod.h), tree number, path
    direct: tuple[tuple[str, str], ...] = ()  # what is shown as it is on the host: path, why
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
        """A mount of a host folder, with what is mounted below it.

        `kind`: "r" read-only, "w" writable, "p" read-only with the host's own ids.
        """
        return (await self.open_folder(path, kind)).mount

    async def open_shown(self, path: str) -> list[tuple[str, int]]:
        """A host folder, to be shown through overlays: a mount of it alone, and one of each that is mounted below it.

        With each the path from the folder on. An overlay shows nothing of what is mounted in a folder, so each has to
        have one of its own. Raises RametError where the kernel does not let us take them apart.
        """
        kind = "o" if _shifts_below_overlays() else "q"
        opened: list[tuple[str, int]] = []
        try:
            folder = await self.open_folder(path, kind)
            opened.append(("", folder.mount))
            if len(folder.below) > _MOST_MOUNTS_BELOW:
                raise RametError(
                    f"cannot show {path} in a sandbox: {len(folder.below)} file systems are mounted below it",
                    hint=f"mount a folder with at most {_MOST_MOUNTS_BELOW} of them, or several smaller folders",
                )
            for place in sorted(set(folder.below)):
                opened.append((place, (await self.open_folder(path + place, kind)).mount))
                if not stat.S_ISDIR(os.fstat(opened[-1][1]).st_mode):
                    raise RametError(
                        f"cannot show {path} in a sandbox: {path}{place}, which is mounted below it, is not a folder",
                        hint="mount a folder without it",
                    )
        except BaseException:
            for _, mount in opened:
                os.close(mount)
            raise
        return opened

    async def open_folder(self, path: str, kind: str) -> HostFolder:
        """The same as `open`, with the places of what is mounted below; "o" and "q" are "r" and "p" without those."""
        async with self._turn:
            # To its end: two requests under way could take each other's answers, and a sandbox see a wrong folder.
            answer, descriptors = await finish(asyncio.to_thread(self._ask, f"tree {kind} {path}"), _discard)
        word, *below = answer.split("\n")
        if word == "ok" and len(descriptors) == 1:
            return HostFolder(descriptors[0], tuple(below))
        _discard((answer, descriptors))
        if word in ("ok", "") or answer.startswith("error busy: "):
            # Its descriptor did not come: too many under way for this user, or no number left for it in this process.
            why = word.removeprefix("error busy: ") or "its launcher has ended"
            raise LimitReached(
                f"cannot show {path} in a sandbox: {'Too many open files' if why == 'ok' else why}",
                hint="close some sandboxes, and try again",
            )
        if "is mounted below it" in answer:
            raise RametError(
                f"cannot show {path} in a sandbox: {answer.removeprefix('error ')}",
                hint="mount the folders in it one by one, or run as root",
            )
        raise RametError(
            f"cannot show {path} in a sandbox: {answer.removeprefix('error ')}",
            hint="check that it exists and that you may read it",
        )

    def _ask(self, request: str) -> tuple[str, list[int]]:
        send_packet(self._channel, request)
        return receive_packet(self._channel)


class Holder:
    """pid 1 of E1. One per engine."""

    def __init__(self, channel: socket.socket, pid: int, broker: Broker, guest: str, bounds_ipc: bool = True) -> None:
        self._channel = channel
        self.bounds_ipc = bounds_ipc  # System V memory and queues: their namespace's settings can be written
        self.pidfd = os.pidfd_open(pid)
        self._broker = broker
        self._guest = guest
        self._trees: dict[tuple[str, str], asyncio.Task[Tree]] = {}
        self._tree_numbers = itertools.count()
        self._tree_turn = asyncio.Lock()
        self._tree_answer: asyncio.Future[str] | None = None
        self._to_detach: list[int] = []
        self._pods: dict[str, asyncio.Future[PodHandle]] = {}
        self._pod_numbers = itertools.count(1)
        self._layouts: dict[Interpreter, asyncio.Task[Layout]] = {}
        # Done when it has ended before it was closed. Nothing works without it: no pod can be made, no sandbox thawed.
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(channel.fileno(), self._on_packet)
        asyncio.get_running_loop().add_reader(self.pidfd, self._on_end)

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
            raise _not_capable(f"cannot make the namespaces of sandboxes: {done.stderr.strip()}")
        answer, _ = await asyncio.to_thread(receive_packet, ours)
        if answer not in ("ready", "ready ipc"):
            raise _not_capable(f"cannot make the base of sandboxes: {answer.removeprefix('error ')}")
        ours.setblocking(False)
        return cls(ours, int(done.stdout), broker, guest, answer == "ready ipc")

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        asyncio.get_running_loop().remove_reader(self.pidfd)
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
            self._on_end()
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
        about_a_tree = kind == "ok" or text.startswith(("error attach ", "error unknown request"))
        if about_a_tree and self._tree_answer is not None and not self._tree_answer.done():
            self._tree_answer.set_result(text)

    def _on_end(self) -> None:
        """The kernel's memory killer or an operator ended it, and with it every process in every pod."""
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        asyncio.get_running_loop().remove_reader(self.pidfd)
        self._fail_all(RametError("the holder of the sandboxes' namespaces ended"))
        if not self.lost.done():
            self.lost.set_result(None)

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
        kind = "r" if _shifts_below_overlays() else "p"
        # The system's own folders keep the host's ids: what only root may read there stays unreadable.
        wanted = [("show", "p", path, path) for path in system_folders()]
        wanted += [("overlay", kind, path, path) for path in interpreter.trees]
        wanted.append(("show", "r", self._guest, GUEST_FOLDER))
        if interpreter.library is not None:
            wanted.append(("show", "r", interpreter.library, LIBRARY_FOLDER))
        places: list[tuple[str, int, str]] = []
        direct: list[tuple[str, str]] = []
        for how, ids, source, path in wanted:
            tree = await self._tree(source, ids)
            if tree.direct is not None:
                direct.append((path, tree.direct))
            places.append((how if tree.direct is None else "bind", tree.number, path))
        folder = tempfile.mkdtemp(prefix="skeleton-")
        os.chmod(folder, 0o755)
        await asyncio.to_thread(write_skeleton, folder, interpreter)
        skeleton = await self._attach(syscalls.clone_tree(folder))
        layout = Layout(skeleton.number, tuple(places), tuple(direct))
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
        return (await self._attach(syscalls.clone_tree(folder))).number

    async def _tree(self, path: str, kind: str) -> Tree:
        key = (path, kind)
        if key not in self._trees:
            self._trees[key] = asyncio.create_task(self._open_and_attach(path, kind))
        try:
            return await asyncio.shield(self._trees[key])
        except Exception:
            self._trees.pop(key, None)
            raise

    async def _open_and_attach(self, path: str, kind: str) -> Tree:
        folder = await self._broker.open_folder(path, kind)
        tree = await self._attach(folder.mount, "show")
        if folder.below:
            # An overlay would hide what is mounted there, or be refused because nobody may look below it.
            return replace(tree, direct=f"{path}{folder.below[0]} is mounted below it")
        return tree

    async def attach_layer(self, mount: int) -> int:
        """Show a sealed layer to the builders of pods; its number."""
        return (await self._attach(os.dup(mount))).number

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

    async def _attach(self, mount: int, asking: str = "") -> Tree:
        """With "show" the holder also tries whether an overlay takes it."""
        async with self._tree_turn:
            self._send_detachments()
            number = next(self._tree_numbers)
            self._tree_answer = asyncio.get_running_loop().create_future()
            try:
                send_packet(self._channel, f"tree {number} {asking}", [mount])
                answer = await asyncio.wait_for(self._tree_answer, _POD_SECONDS)
            finally:
                os.close(mount)
                self._tree_answer = None
        word, _, reason = answer.partition(" ")
        if word != "ok":
            raise RametError(f"cannot attach a folder to the sandboxes' base: {answer.removeprefix('error ')}")
        return Tree(number, f"overlayfs does not support its file system: {reason}" if reason else None)


def _shifts_below_overlays() -> bool:
    """Whether an overlay takes a mount whose ids are shifted."""
    major, minor = re.findall(r"\d+", platform.release())[:2]
    return (int(major), int(minor)) >= _OVERLAY_TAKES_SHIFTED_IDS


def _pod_error(detail: str) -> RametError:
    if re.search(r"No space left|Too many|Cannot allocate|Resource temporarily", detail):
        return LimitReached(
            f"cannot make a pod: {detail}",
            hint="the host has no resources for another sandbox: close some, or raise its limits",
        )
    if found := re.fullmatch(r"show (.*) through an overlay: (.*)", detail, re.DOTALL):
        return RametError(
            f"cannot show a folder at {found[1]} in a sandbox: overlayfs does not support its file system ({found[2]})",
            hint="copy the files to another file system, or upload them",
        )
    return _not_capable(f"cannot make a pod: {detail}")


def _not_capable(message: str) -> HostNotCapable:
    return hints.refused(message) if hints.is_refusal(message) else HostNotCapable(message, hint="run: ramet doctor")
