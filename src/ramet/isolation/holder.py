"""The engine's connections to its broker, which opens host folders, and to its holder (E1), which makes pods."""

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
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ramet.errors import HostNotCapable, LimitReached, RametError
from ramet.isolation import hints
from ramet.isolation.files.install_places import foreign_places
from ramet.isolation.files.skeleton import GUEST_FOLDER, LIBRARY_FOLDER, system_folders, write_skeleton
from ramet.isolation.kernel import syscalls
from ramet.isolation.launch import HELPER
from ramet.isolation.thread_work import finish
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import Interpreter
from ramet_guest.wire import PACKET_BYTES_AT_MOST

_POD_SECONDS = 20.0
_OVERLAY_TAKES_SHIFTED_IDS = (5, 19)  # Linux 5.19: before it, an overlay refuses an idmapped mount as a lower layer
_MOST_MOUNTS_BELOW = 32  # mounts below one shown folder, counted over all levels


@dataclass(frozen=True, slots=True)
class HostFolder:
    """A host folder as a detached mount, and the places where other file systems are mounted below it."""

    mount: int
    below: tuple[str, ...]  # relative to the folder, each with a leading slash


@dataclass(frozen=True, slots=True)
class HostTree:
    """A host folder attached in the holder, where builders of pods find it under its number."""

    number: int
    direct: str | None  # why pods show it without an overlay; None: they use one


@dataclass(frozen=True, slots=True)
class PodHandle:
    """The holder's answer for a new pod. The caller closes the descriptors."""

    init_pid: int  # in E1's numbering
    init_pidfd: int
    root: int
    upper: int  # the tmpfs with the writable folders of its overlays
    shm: int  # its /dev/shm


@dataclass(frozen=True, slots=True)
class Layout:
    """The file tree of pods for one interpreter: a skeleton, and the place of each tree."""

    skeleton: int
    places: tuple[tuple[str, int, str], ...]  # "bind", "show" or "overlay" (native/pod/pod.h), tree number, path
    direct: tuple[tuple[str, str], ...] = ()  # (path, reason) of what pods show without an overlay
    layer: int | None = None  # a tree below everything written, with a folder for each overlay that has something in it

    def overlays(self) -> tuple[tuple[str, str], ...]:
        """(folder in a pod's writable layer, path in the pod) of each overlay. native/pod/tree.c chooses the names."""
        shown = ((f"tree{i}", path) for i, (kind, _, path) in enumerate(self.places) if kind == "overlay")
        return (("root", "/"), *shown)


def send_packet(channel: socket.socket, text: str, descriptors: Sequence[int] = ()) -> None:
    """Send one packet with descriptors."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    channel.sendmsg([os.fsencode(text)], rights)


def receive_packet(channel: socket.socket) -> tuple[str, list[int]]:
    """Receive one packet. The caller owns the descriptors, which may be fewer than were sent.

    An empty text means that the other side closed. The kernel drops descriptors for which this process has no free
    numbers.
    """
    data, descriptors, _, _ = socket.recv_fds(channel, PACKET_BYTES_AT_MOST, 4)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return os.fsdecode(data), list(descriptors)


def _discard(packet: tuple[str, list[int]]) -> None:
    for descriptor in packet[1]:
        os.close(descriptor)


class Broker:
    """Asks the launcher, which still sees the host, to open folders as detached mounts. It answers in order."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        # Answers carry no ids, so only one request may be in flight.
        self._turn = asyncio.Lock()

    async def open(self, path: str, kind: str) -> int:
        """Open a host folder with everything mounted below it, as a detached mount.

        `kind`: "r" read-only, "w" writable, "p" read-only with the host's own ids. Raises as `open_folder`.
        """
        return (await self.open_folder(path, kind)).mount

    async def open_shown(self, path: str) -> list[tuple[str, int]]:
        """Open a host folder for showing it through overlays: one mount for itself, one for each mount below it.

        Returns each with its path relative to the folder. An overlay does not show what is mounted inside its lower
        layer, so each of these mounts gets an overlay of its own. Raises RametError where the kernel refuses to
        separate them.
        """
        # See `_OVERLAY_TAKES_SHIFTED_IDS`.
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
        """Open a host folder and list the mounts below it; "o" and "q" are "r" and "p" without these mounts.

        Raises LimitReached when descriptors run out, RametError when the folder cannot be opened.
        """
        async with self._turn:
            # Run to the end even if our caller is cancelled: its answer would be taken for the next one, and a sandbox
            # would show the wrong folder.
            answer, descriptors = await finish(asyncio.to_thread(self._ask, f"tree {kind} {path}"), _discard)
        word, *below = answer.split("\n")
        if word == "ok" and len(descriptors) == 1:
            return HostFolder(descriptors[0], tuple(below))
        _discard((answer, descriptors))
        if word in ("ok", "") or answer.startswith("error busy: "):
            # The answer came without its descriptor. The kernel refuses to send when too many are in flight for this
            # user, and drops it when this process has no free number.
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
    """The connection to the holder, pid 1 of E1. One per engine."""

    def __init__(self, channel: socket.socket, pid: int, broker: Broker, guest: str, bounds_ipc: bool = True) -> None:
        self._channel = channel
        # Whether pods can limit System V objects: the kernel lets us write their namespace's settings.
        self.bounds_ipc = bounds_ipc
        self.pidfd = os.pidfd_open(pid)
        self._broker = broker
        self._guest = guest
        # Tasks rather than results, so that concurrent callers share one request and a failed one can be retried.
        self._trees: dict[tuple[str, str], asyncio.Task[HostTree]] = {}
        self._tree_numbers = itertools.count()
        # Answers about trees carry no number, so only one tree request may be in flight. Pods are matched by id.
        self._tree_turn = asyncio.Lock()
        self._tree_answer: asyncio.Future[str] | None = None
        # Detachments that did not fit into the socket buffer; the next request sends them first.
        self._to_detach: deque[int] = deque()
        self._pods: dict[str, asyncio.Future[PodHandle]] = {}
        self._pod_numbers = itertools.count(1)
        self._layouts: dict[Interpreter, asyncio.Task[Layout]] = {}
        # Resolved when the holder ends unexpectedly. Without it no pod can be made and no sandbox thawed.
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(channel.fileno(), self._on_packet)
        # The end of the socket and the pidfd both report its death, in either order; `_on_end` stops watching both.
        asyncio.get_running_loop().add_reader(self.pidfd, self._on_end)

    @classmethod
    async def start(cls, broker: Broker, guest: str) -> Holder:
        """Start the holder process. Raises HostNotCapable when the host refuses its namespaces or its base tree."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Close the holder's end here, so that our end reports end-of-file if it dies before it answers.
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
            return  # a spurious wakeup, or another packet was already read
        except OSError:
            text, descriptors = "", []  # as if it had closed the socket
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
                # The pod arrived without all its descriptors: this process has no free numbers for them. Our caller
                # closes its command socket, upon which its init exits.
                waiting.set_exception(_pod_error(detail if kind == "error" else "Too many open files"))
            return
        for descriptor in descriptors:
            os.close(descriptor)
        # Both the init and the builder of a failed pod may report it. The second report finds no waiter, and must not
        # be taken for the answer to a tree request that happens to be in flight.
        about_a_tree = kind == "ok" or text.startswith(("error attach ", "error unknown request"))
        if about_a_tree and self._tree_answer is not None and not self._tree_answer.done():
            self._tree_answer.set_result(text)

    def _on_end(self) -> None:
        """Fail everything in flight: the OOM killer or an operator ended pid 1 of E1, and with it every pod."""
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
        """Build a pod with this file tree. `lines` and `descriptors` are as in `native/pod/pod.h`.

        Raises LimitReached without room, HostNotCapable when the host refuses a step, RametError after a timeout.
        """
        number = str(next(self._pod_numbers))
        places = [f"{kind} {tree} {path}" for kind, tree, path in layout.places]
        lowest = [f"layer {layout.layer}"] if layout.layer is not None else []
        future: asyncio.Future[PodHandle] = asyncio.get_running_loop().create_future()
        # Registered before sending, because the answer may arrive before this task runs again. After a timeout the
        # entry stays, so that `_on_packet` recognises a late pod and closes its descriptors.
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
        """The layout for an interpreter, made once. Concurrent calls share the work.

        Raises RametError when a folder cannot be opened or attached.
        """
        if interpreter not in self._layouts:
            self._layouts[interpreter] = asyncio.create_task(self._make_layout(interpreter))
        try:
            # Shielded: cancelling one caller must not cancel the work that others wait for.
            return await asyncio.shield(self._layouts[interpreter])
        except Exception:
            self._layouts.pop(interpreter, None)
            raise

    async def _make_layout(self, interpreter: Interpreter) -> Layout:
        kind = "r" if _shifts_below_overlays() else "p"
        # System folders keep the host's ids: mapped ids would make files readable that only root may read.
        wanted = [("show", "p", path, path) for path in system_folders()]
        wanted += [("overlay", kind, path, path) for path in interpreter.trees]
        wanted.append(("show", "r", self._guest, GUEST_FOLDER))
        if interpreter.library is not None:
            wanted.append(("show", "r", interpreter.library, LIBRARY_FOLDER))
        folder = tempfile.mkdtemp(prefix="skeleton-")
        # mkdtemp makes it 0700, but it becomes "/" of every pod, which programs expect to be 0755.
        os.chmod(folder, 0o755)
        # While the folders of the host are opened: each takes tens of milliseconds, and the first sandbox waits.
        writing = asyncio.create_task(asyncio.to_thread(write_skeleton, folder, interpreter))
        places: list[tuple[str, int, str]] = []
        direct: list[tuple[str, str]] = []
        try:
            for how, ids, source, path in wanted:
                tree = await self._tree(source, ids)
                if tree.direct is not None:
                    direct.append((path, tree.direct))
                places.append((how if tree.direct is None else "bind", tree.number, path))
        finally:
            await writing
        # The mount keeps the folder alive in every namespace it is attached to, whatever happens to its path here.
        skeleton = await self._attach(syscalls.clone_tree(folder))
        layout = Layout(skeleton.number, tuple(places), tuple(direct))
        return replace(layout, layer=await self._install_places(layout, interpreter, kind))

    async def _install_places(self, layout: Layout, interpreter: Interpreter, kind: str) -> int | None:
        """Attach a layer that makes the interpreter's install folders writable, if another user owns them.

        None: not needed.
        """
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

    async def _tree(self, path: str, kind: str) -> HostTree:
        key = (path, kind)
        if key not in self._trees:
            self._trees[key] = asyncio.create_task(self._open_and_attach(path, kind))
        try:
            return await asyncio.shield(self._trees[key])
        except Exception:
            self._trees.pop(key, None)
            raise

    async def _open_and_attach(self, path: str, kind: str) -> HostTree:
        folder = await self._broker.open_folder(path, kind)
        tree = await self._attach(folder.mount, "show")
        if folder.below:
            # An overlay would hide what is mounted there, or the kernel would refuse it: it does not let a user
            # namespace uncover what is below a mount.
            return replace(tree, direct=f"{path}{folder.below[0]} is mounted below it")
        return tree

    async def attach_layer(self, mount: int) -> int:
        """Show a sealed layer to the builders of pods and return its number."""
        # `_attach` closes what it sends; the layer keeps its own descriptor.
        return (await self._attach(os.dup(mount))).number

    def detach_tree(self, number: int) -> None:
        """Have the holder forget a tree. Existing pods keep it mounted. May be called from any thread."""
        self._to_detach.append(number)
        self._send_detachments()

    def _send_detachments(self) -> None:
        # Several threads may be here at once. Each takes a number off before it sends it, so that no two send the same
        # one and then remove one that was not sent.
        while self._to_detach:
            try:
                number = self._to_detach.popleft()
            except IndexError:
                return
            try:
                send_packet(self._channel, f"untree {number}")
            except BlockingIOError:
                self._to_detach.appendleft(number)
                return  # the socket buffer is full: the next request sends the rest
            except OSError:
                pass  # the holder is gone, and its trees with it

    async def _attach(self, mount: int, asking: str = "") -> HostTree:
        """Attach a mount under a new number; takes the descriptor.

        With "show" the holder also tries an overlay over it.
        """
        async with self._tree_turn:
            self._send_detachments()
            number = next(self._tree_numbers)
            self._tree_answer = asyncio.get_running_loop().create_future()
            # All callers await this in shielded tasks. A cancellation here would leave an answer on the way, which the
            # next request would take for its own.
            try:
                send_packet(self._channel, f"tree {number} {asking}", [mount])
                answer = await asyncio.wait_for(self._tree_answer, _POD_SECONDS)
            finally:
                os.close(mount)
                self._tree_answer = None
        word, _, reason = answer.partition(" ")
        if word != "ok":
            raise RametError(f"cannot attach a folder to the sandboxes' base: {answer.removeprefix('error ')}")
        return HostTree(number, f"overlayfs does not support its file system: {reason}" if reason else None)


def _shifts_below_overlays() -> bool:
    """Whether this kernel accepts an idmapped mount as a lower layer of an overlay."""
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
