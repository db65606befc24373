"""Seams to the layers below the engine. ``__main__`` plugs in the real ones, a test scripted ones."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from ramet.isolation.files.three_way import FilePlan
from ramet.isolation.files.walks import Stop
from ramet.protocol.import_terms import ImportTerms
from ramet.protocol.values.differences import FileChange
from ramet.protocol.values.specs import Limits, MountSpec, TemplateSpec


class Death(Protocol):
    """How a REPL ended."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def out_of_memory(self) -> bool: ...


class DeathNews(Protocol):
    """The part of ``asyncio.Future[Death]`` that is needed; a future itself would fix one class of Death for ever."""

    def done(self) -> bool: ...
    def result(self) -> Death: ...
    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


class ExitNews(Protocol):
    """The part of ``asyncio.Future[int]`` that is needed."""

    def result(self) -> int: ...
    def add_done_callback(self, callback: Callable[[Any], object], /) -> object: ...


class Session(Protocol):
    """The processes of one terminal, which end with their leader, and the engine's end of the terminal."""

    @property
    def master(self) -> int:
        """Not blocking; -1 when it was closed."""

    @property
    def ended(self) -> ExitNews: ...
    def resize(self, columns: int, rows: int) -> None: ...
    def close_master(self) -> None: ...
    async def end(self, hang_up: bool = True) -> None: ...


class Prepared(Protocol):
    """Something made for a body while it waited in the pool."""

    def close(self) -> None: ...


class Body(Protocol):
    """One sandbox's REPL in its pod. ``revive`` replaces pid, control, stdout, stderr and death.

    ``prepared`` is closed with it, unless its first user has taken it.
    """

    prepared: Prepared | None
    owner: str

    @property
    def pid(self) -> int: ...
    @property
    def control(self) -> socket.socket: ...
    @property
    def stdout(self) -> int: ...
    @property
    def stderr(self) -> int: ...
    @property
    def root(self) -> int: ...
    @property
    def death(self) -> DeathNews: ...
    async def refresh(self) -> None:
        """Make changes of the host visible in folders that are shown read-only."""

    def signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    async def revive(self) -> None:
        """Empty the pod and thaw the template into it again."""

    async def close(self) -> None: ...
    async def open_terminal(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        folder: str | None,
        columns: int,
        rows: int,
        commands: str | None = None,
    ) -> Session:
        """``commands``: a folder of programs, before all others in PATH."""

    async def listen(self, name: str, backlog: int) -> socket.socket | None:
        """A unix socket, not blocking, at an abstract name in the pod's network. None: the name is taken there."""

    async def listen_tcp(self, port: int, backlog: int) -> socket.socket | None:
        """A TCP socket, not blocking, that listens on the pod's loopback. None: the port is taken there."""

    async def bind_udp(self, port: int) -> socket.socket | None: ...
    async def plain_socket(self) -> socket.socket:
        """TCP, not blocking and not connected: it reaches servers that listen in the pod."""

    async def netlink(self, family: int) -> socket.socket:
        """A netlink socket of the pod's network, which can be changed through it."""

    def usage(self) -> Mapping[str, int]: ...
    def walls(self) -> Mapping[str, object]: ...
    @property
    def ancestors(self) -> int:
        """Processes that live and that its memory was copied from, one from the other."""

    def processor_seconds(self) -> float:
        """The time that the threads of the REPL have worked. Cheap."""

    def unique_bytes(self) -> int:
        """Memory that it shares with no other. Called on the event loop right after a fork, so it must be cheap."""


Prepare = Callable[[Body], Awaitable[Prepared]]


class Forked(Protocol):
    """The bodies that one fork made, which belong to its caller, and its cost."""

    @property
    def bodies(self) -> Sequence[Body]: ...
    @property
    def pause_seconds(self) -> float: ...
    @property
    def file_bytes(self) -> int: ...


class Frozen(Protocol):
    """A snapshot of a sandbox. Its caller closes it."""

    @property
    def pause_seconds(self) -> float: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def shadow(self) -> int:
        """Its process, in the engine's numbering; 0 when there is none any more."""

    @property
    def faithful(self) -> bool:
        """Whether a copy has all that the sandbox had: no child process of it runs, and it is connected to nothing."""

    def give_way(self) -> None:
        """What it holds counts in its sandbox's memory limit, and when that is reached the kernel rather ends this."""

    def allow(self, memory_bytes: int) -> None:
        """Let its sandbox have this much more than its limit, for what this one holds."""

    async def usable(self) -> bool:
        """Whether it can still be thawed: the kernel may have ended its process."""

    async def close(self) -> None: ...


class JournalContents(Protocol):
    """What the journal of a sandbox on disk says."""

    @property
    def about(self) -> Mapping[str, object]:
        """The row of the sandbox in lists."""

    @property
    def cells(self) -> tuple[tuple[int, str], ...]: ...
    @property
    def changes(self) -> tuple[tuple[int, str], ...]:
        """What was done with it besides cells, by number."""

    @property
    def ended(self) -> bool:
        """Its owner has closed it, or its lifetime was over."""


class Journal(Protocol):
    """The journal of a sandbox on disk, which this engine has and no other."""

    def introduce(self, about: Mapping[str, object]) -> None:
        """What the sandbox is from now on."""

    def begun(self, cell_id: int, code: bytes) -> None: ...
    def changed(self, number: int, what: str) -> None: ...
    def ended(self) -> None: ...
    def sync(self) -> None:
        """Wait until what the sandbox is has reached the disk. Blocks."""

    def written(self, cells: int, changes: int) -> None:
        """An image has all cells up to this number, and all changes up to that one."""

    def contents(self) -> JournalContents: ...
    def close(self, remove: bool = False) -> None: ...


class FilesToTake(Protocol):
    """Files of one body that are brought into another. ``stage`` and ``commit`` block."""

    @property
    def plan(self) -> FilePlan: ...
    @property
    def copied_bytes(self) -> int: ...
    def stage(self, stop: Stop) -> None:
        """Copy them aside, where they change nothing yet."""

    def commit(self) -> None:
        """Put them in their places. After an error the files are in between."""

    def close(self) -> None:
        """Remove copies that are still aside. Blocks, never fails."""


class Machine(Protocol):
    """Makes templates, bodies, and bodies from bodies. A method that raises leaves nothing behind."""

    def when_lost(self, callback: Callable[[str], None]) -> None:
        """Call back with the reason when the machine is lost, and with it every sandbox."""

    async def template(self, spec: TemplateSpec) -> None: ...
    async def create(
        self,
        template: TemplateSpec,
        limits: Limits,
        mounts: Sequence[MountSpec],
        prepare: Prepare | None = None,
    ) -> Body:
        """A body from a template. ``prepare`` is done to those that are made ahead of time; perhaps to this one."""

    async def fork(self, body: Body, count: int, keep_pid: bool, on_resumed: Callable[[], None]) -> Forked:
        """This many copies, or ForkFailed and none. ``on_resumed`` is called on the loop when the parent runs again."""

    async def freeze(self, body: Body, keep_pid: bool, stay_stopped: bool = False) -> Frozen:
        """A snapshot. ``stay_stopped``: the body does nothing that it does not know of until it gets SIGCONT."""

    async def thaw(self, frozen: Frozen, limits: Limits | None, mounts: Sequence[MountSpec] | None) -> Body:
        """A body from a snapshot. None: limits and mounts as the sandbox that was frozen had."""

    async def save_image(self, frozen: Frozen, name: str, about: Mapping[str, object]) -> int:
        """Write a snapshot to disk, with plain data of the caller's own. Returns its size in bytes."""

    async def open_journal(self, name: str) -> Journal:
        """Lock the journal of a sandbox on disk, made if need be. Raises RametError if another engine has it."""

    async def journals(self) -> Sequence[tuple[str, JournalContents, bool]]:
        """All journals: name, contents, and whether an engine has it."""

    def export_image(self, name: str) -> AsyncGenerator[bytes, None]:
        """The image of this name as one file, piece by piece. The name is gone when the first one comes."""

    async def import_image(self, receive: Callable[[], Awaitable[bytes | None]], terms: ImportTerms) -> None:
        """Keep an image that comes as one file, under the name of the terms. Raises RametError."""

    async def image_names(self, prefix: str) -> list[str]:
        """Of the images on disk whose names begin like this."""

    async def image_bytes(self, owner_part: str) -> int:
        """What the images on disk take whose names have this part."""

    async def image_id(self, name: str) -> str | None:
        """Of the image on disk that has this name now."""

    async def image_figures(self) -> Mapping[str, object]:
        """What the folder of images holds by kind, and what this engine did with it. Raises RametError or OSError."""

    @property
    def keeps_images(self) -> bool:
        """Whether there is a folder for them."""

    async def forget_image(self, name: str) -> None:
        """Remove it, if it is there."""

    async def write_point(
        self, frozen: Frozen, whose: str, about: Mapping[str, object], base: str | None, bytes_at_most: int
    ) -> tuple[str, int]:
        """Write a snapshot to disk that nobody waits for, under a name of this engine's own: its name and its size.

        ``whose``: its sandbox. ``base``: an earlier one of the same. It is gone with the engine.
        """

    def stop_writing_point(self) -> None:
        """Give up the one that is being written."""

    async def point_sizes(self) -> Mapping[str, int]:
        """What the points on disk take there, by their names."""

    async def load_image(self, name: str) -> tuple[Frozen, Mapping[str, object]] | None:
        """A snapshot from disk, and the data that was given with the ``image_id``. None: none has this name.

        The caller closes it.
        """

    async def diff_files(
        self, one: Body, other: Body, paths: tuple[str, ...] | None, owner: str
    ) -> Sequence[FileChange]:
        """The changes that lead from the files of one to those of the other, by path. Ends soon when cancelled."""

    async def plan_files(
        self, ours: Body, theirs: Body, wanted: Sequence[str] | None, prefer: str | None, owner: str
    ) -> FilesToTake:
        """What one would take of the files of another, compared with their common ancestor."""

    async def open_folder(self, path: str, writable: bool) -> int:
        """A folder of the host as a detached mount; the descriptor is the caller's."""

    async def close(self) -> None: ...
    def facts(self) -> Mapping[str, object]: ...
