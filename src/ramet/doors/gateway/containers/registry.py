"""All containers of a gateway: finds them by owner and id, puts idle ones to sleep, forgets old ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

from ramet import AsyncSandbox, History, Undone
from ramet.doors.gateway.containers import descriptions
from ramet.doors.gateway.containers.container import Container, new_id
from ramet.doors.gateway.containers.kept_sandbox import LOST
from ramet.doors.gateway.containers.refusals import ContainerBusy, ContainerExpired, ContainersFull, ContainerUnknown
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.containers.store import GONE_KEPT, ContainerStore, GoneContainer, StoredContainer
from ramet.doors.gateway.errors import invalid
from ramet.doors.gateway.files.store import FileStore
from ramet.errors import RametError

__all__ = [
    "Container",
    "ContainerBusy",
    "ContainerExpired",
    "ContainerSettings",
    "ContainerUnknown",
    "Containers",
    "ContainersFull",
]

_log = logging.getLogger("ramet.doors.gateway")
_CLOSE_SECONDS = 5.0
_LEAVING_AT_ONCE = 4  # containers that are put to sleep when the gateway ends
_NOT_ON_DISK = "the gateway was started anew, and its state was not on disk"


class Containers:
    """Owns all containers of one gateway. An owner sees only its own."""

    def __init__(
        self,
        settings: ContainerSettings,
        files: FileStore,
        store: ContainerStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """The containers in the store are there again. Their sandboxes are resumed when they are used."""
        self.settings = settings
        self._files = files
        self._store = store
        self._clock = clock
        self._all: dict[str, Container] = {}
        self._gone: OrderedDict[tuple[str, str], str] = OrderedDict()  # the reason, by owner and id
        self._undiscarded: list[GoneContainer] = []  # whose sandboxes may be on disk
        self._tending: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self._load()

    def __repr__(self) -> str:
        return f"<Containers: {len(self._all)}, {len(self._gone)} gone>"

    async def open(self, owner: str, container_id: str | None = None, notice: str = "") -> Container:
        """The container with this id, or a new one, which costs nothing before its first use. Raises ApiError.

        ``notice``: the first line of the first cell's stderr in a new one.
        """
        if container_id is not None:
            container = self._find(owner, container_id)
            container.touch()
            return container
        await self._make_room(owner, 1)
        now = self._clock()
        known = StoredContainer(new_id(), owner, now, now, notice=notice)
        return self._add(Container(owner, self.settings, self._files, self._store, self._clock, stored=known))

    def find_by_cells(self, owner: str, tool_use_ids: Sequence[str]) -> str | None:
        """The id of the owner's container in which the first known one of these calls was begun.

        The upstream makes the ids, and some upstreams repeat ids in several conversations: an id that two containers
        know finds neither.
        """
        places: dict[str, list[str]] = {}
        for container in self.list(owner):
            for tool_use_id in container.begun_here(tool_use_ids):
                places.setdefault(tool_use_id, []).append(container.id)
        return next((places[one][0] for one in tool_use_ids if len(places.get(one, ())) == 1), None)

    async def describe(self, owner: str, container_id: str) -> dict[str, object]:
        """Describe a container. This does not count as a use and so does not extend its lifetime."""
        return await descriptions.describe(self._find(owner, container_id), self.settings)

    async def fork(self, owner: str, container_id: str, n: int = 1) -> list[Container]:
        """Copy a container between two cells. Makes all copies, or none. Raises ApiError."""
        if not 1 <= n <= self.settings.forks_at_once:
            raise invalid(f"n: must be from 1 to {self.settings.forks_at_once}")
        container = self._find(owner, container_id)
        with container.in_use():
            await self._make_room(owner, n)
            children = await container.fork(n)
        return [self._add(child) for child in children]

    async def history(self, owner: str, container_id: str) -> History:
        """The past of a container. Raises ApiError."""
        return await self._find(owner, container_id).history()

    async def undo(self, owner: str, container_id: str, n: int = 1) -> Undone:
        """Take a container back to the state before its last calls. Raises ApiError."""
        return await self._find(owner, container_id).undo(n)

    async def delete(self, owner: str, container_id: str) -> None:
        """End a container, also one that is busy."""
        await self._forget(self._find(owner, container_id), "it was deleted")

    async def tend(self) -> None:
        """Put idle containers to sleep, forget unused and lost ones, interrupt code that no client asks about."""
        now, settings = self._clock(), self.settings
        await self._discard_left()
        for container in list(self._all.values()):
            idle_seconds = now - container.used_seconds
            try:
                if container.closed is not None:
                    await self._forget(container, container.closed)
                elif idle_seconds >= settings.container_keep_seconds and not container.in_request:
                    await self._forget(container, "it was unused for too long")
                elif idle_seconds >= settings.container_idle_seconds:
                    if (run := container.deserted_run(idle_seconds)) is not None:
                        await run.abandon()
                    await container.freeze()
            except LOST as error:
                if container.closed is None and container.let_go():
                    continue  # the next request resumes it
                with contextlib.suppress(RametError):
                    await self._forget(container, f"its sandbox is gone: {error.message}")
            except RametError:
                # It stays awake. The next round tries again, and it is forgotten at its time.
                _log.warning("%r could not be frozen or closed", container, exc_info=True)

    async def close(self) -> None:
        """Put all containers to sleep: the next gateway has them. One that takes too long is at its last checkpoint."""
        self._closed.set()
        if self._tending is not None:
            # Give a freeze that is under way some time: cancelling it in the middle could leave the sandbox unowned.
            _, unfinished = await asyncio.wait({self._tending}, timeout=_CLOSE_SECONDS)
            if unfinished:
                self._tending.cancel()
            self._tending = None
        room = asyncio.Semaphore(_LEAVING_AT_ONCE)

        async def leave(container: Container) -> None:
            async with room:
                with contextlib.suppress(RametError):
                    await container.leave("the gateway was closed")

        leaving = [asyncio.create_task(leave(container)) for container in self._all.values()]
        if leaving:
            _, unfinished = await asyncio.wait(leaving, timeout=self.settings.leave_seconds)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished)
                _log.warning("%d containers could not be put to sleep in time", len(unfinished))
        self._all.clear()

    def _find(self, owner: str, container_id: str) -> Container:
        container = self._all.get(container_id)
        if container is not None and container.owner == owner:
            if container.closed is not None:
                raise ContainerExpired(container_id, container.closed)
            return container
        why = self._gone.get((owner, container_id))
        if why is not None:
            raise ContainerExpired(container_id, why)
        raise ContainerUnknown(container_id)

    def _add(self, container: Container) -> Container:
        if self._closed.is_set():
            raise RuntimeError("the gateway was closed")
        self._all[container.id] = container
        self._store.add(container.stored())
        self.start()
        return container

    def start(self) -> None:
        """Begin to tend the containers, if there are any. Needs the running event loop."""
        if self._tending is None and (self._all or self._undiscarded) and not self._closed.is_set():
            self._tending = asyncio.create_task(self._tend_always(), name="tend containers")

    def _load(self) -> None:
        for gone in self._store.gone():
            self._remember(gone.owner, gone.id, gone.why)
            if gone.sandbox_id is not None:
                self._undiscarded.append(gone)
        for one in self._store.containers():
            if one.sandbox_id is None and one.cell_ids:
                self._store.forget(one.id, one.owner, _NOT_ON_DISK)
                self._remember(one.owner, one.id, _NOT_ON_DISK)
                continue
            if one.sandbox_id is None:
                one = replace(one, uploads={})
            self._all[one.id] = Container(one.owner, self.settings, self._files, self._store, self._clock, stored=one)

    async def _discard_left(self) -> None:
        """Discard sandboxes of containers that ended when the gateway could not, or was killed at that moment."""
        left, self._undiscarded = self._undiscarded, []
        for gone in left:
            assert gone.sandbox_id is not None
            try:
                await AsyncSandbox.discard(gone.sandbox_id, url=self.settings.url, api_key=self.settings.api_key)
                self._store.discarded(gone.id)
            except RametError:
                self._undiscarded.append(gone)

    async def _make_room(self, owner: str, count: int) -> None:
        """Forget the expired containers that were unused for longest, until there is room. Raises ContainersFull."""
        await self._forget_oldest(self.list(owner), self.settings.owner_containers - count)
        await self._forget_oldest(list(self._all.values()), self.settings.containers - count)

    async def _forget_oldest(self, among: list[Container], leave: int) -> None:
        surplus = len(among) - leave
        if surplus <= 0:
            return
        now, idle_seconds = self._clock(), self.settings.container_idle_seconds
        over = [one for one in among if not one.busy and now - one.used_seconds >= idle_seconds]
        if len(over) < surplus:
            raise ContainersFull(len(among))
        for container in sorted(over, key=lambda one: one.used_seconds)[:surplus]:
            await self._forget(container, "it made room for newer ones")

    async def _forget(self, container: Container, why: str) -> None:
        # Removed before the first await: `tend` and `delete` may both forget the same container.
        if self._all.pop(container.id, None) is None:
            return
        why = container.closed or why
        self._remember(container.owner, container.id, why)
        sandbox_id = container.stored().sandbox_id
        self._store.forget(container.id, container.owner, why)
        try:
            await container.close(why)
        except RametError:
            if sandbox_id is not None:
                self._undiscarded.append(GoneContainer(container.id, container.owner, why, sandbox_id))
            raise
        self._store.discarded(container.id)

    def _remember(self, owner: str, container_id: str, why: str) -> None:
        self._gone[owner, container_id] = why
        while len(self._gone) > GONE_KEPT:
            self._gone.popitem(last=False)

    async def _tend_always(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), self.settings.tend_seconds)
                return
            try:
                await self.tend()
                await self._files.tend()
            except Exception:
                _log.exception("containers could not be tended")

    def list(self, owner: str) -> list[Container]:
        """An owner's containers, oldest first."""
        return [container for container in self._all.values() if container.owner == owner and container.closed is None]
