"""What the engine needs from the layers below it. ``__main__`` plugs the real ones in, a test a scripted one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ramet.protocol.differences import FileChange
from ramet.protocol.specs import Limits, MountSpec, TemplateSpec


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


class Body(Protocol):
    """One sandbox's REPL in its pod. ``revive`` replaces pid, control, stdout, stderr and death."""

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
    def signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    async def revive(self) -> None: ...
    async def close(self) -> None: ...
    async def open_terminal(
        self, arguments: Sequence[str], variables: Mapping[str, str], folder: str | None, columns: int, rows: int
    ) -> Session: ...
    async def listen(self, name: str, backlog: int) -> socket.socket | None:
        """A unix socket, not blocking, at an abstract name in the pod's own network. None: the name is taken there."""

    def usage(self) -> Mapping[str, int]: ...
    def walls(self) -> Mapping[str, object]: ...
    def unique_bytes(self) -> int:
        """Memory that it shares with no other; asked for on the event loop right after a fork, so it must be cheap."""


class Forked(Protocol):
    """What one fork made. The bodies belong to whoever asked."""

    @property
    def bodies(self) -> Sequence[Body]: ...
    @property
    def pause_seconds(self) -> float: ...
    @property
    def file_bytes(self) -> int: ...


class Frozen(Protocol):
    """A snapshot held by the machine; owned by whoever asked for it."""

    @property
    def pause_seconds(self) -> float: ...
    @property
    def file_bytes(self) -> int: ...
    async def close(self) -> None: ...


class Machine(Protocol):
    """Makes templates, bodies, and bodies from bodies. What it cannot make raises and leaves nothing behind."""

    async def template(self, spec: TemplateSpec) -> None: ...
    async def create(self, template: TemplateSpec, limits: Limits, mounts: Sequence[MountSpec]) -> Body: ...
    async def fork(self, body: Body, count: int, keep_pid: bool, on_resumed: Callable[[], None]) -> Forked:
        """So many copies, or ForkFailed and none. ``on_resumed``, on the event loop: the parent runs again."""

    async def freeze(self, body: Body, keep_pid: bool) -> Frozen: ...
    async def thaw(self, frozen: Frozen, limits: Limits | None, mounts: Sequence[MountSpec] | None) -> Body:
        """None: as the sandbox that was frozen had."""

    async def diff_files(self, one: Body, other: Body, paths: tuple[str, ...] | None) -> Sequence[FileChange]:
        """What one would have to change to have the files of the other, by path."""

    async def close(self) -> None: ...
    def facts(self) -> Mapping[str, object]: ...
