"""All containers of a gateway: finds them by owner and id, freezes idle ones, forgets old ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ramet.doors.gateway.containers import descriptions
from ramet.doors.gateway.containers.container import Container
from ramet.doors.gateway.containers.refusals import ContainerBusy, ContainerExpired, ContainersFull, ContainerUnknown
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.errors import invalid
from ramet.doors.gateway.files.store import FileStore
from ramet.errors import EngineClosed, EngineLost, RametError, SandboxClosed

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
_GONE_KEPT = 20_000
_CLOSE_SECONDS = 5.0


class Containers:
    """Owns all containers of one process. An owner sees only its own."""

    def __init__(self, settings: ContainerSettings, files: FileStore, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self._files = files
        self._clock = clock
        self._all: dict[str, Container] = {}
        self._gone: OrderedDict[tuple[str, str], str] = OrderedDict()  # the reason, by owner and id
        self._tending: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

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
        return self._add(Container(owner, self.settings, self._files, self._clock, notice=notice))

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

    async def delete(self, owner: str, container_id: str) -> None:
        """End a container, whatever it is doing."""
        await self._forget(self._find(owner, container_id), "it was deleted")

    async def tend(self) -> None:
        """Freeze idle containers, forget unused and lost ones, interrupt code that no client asks about."""
        now, settings = self._clock(), self.settings
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
            except (EngineClosed, EngineLost, SandboxClosed) as error:
                with contextlib.suppress(RametError):
                    await self._forget(container, f"its sandbox is gone: {error.message}")
            except RametError:
                # It stays awake. The next round tries again, and it is forgotten at its time.
                _log.warning("%r could not be frozen or closed", container, exc_info=True)

    async def close(self) -> None:
        """End all containers."""
        self._closed.set()
        if self._tending is not None:
            # Give a freeze that is under way some time: cancelling it in the middle could leave the sandbox unowned.
            _, unfinished = await asyncio.wait({self._tending}, timeout=_CLOSE_SECONDS)
            if unfinished:
                self._tending.cancel()
            self._tending = None
        for container in list(self._all.values()):
            with contextlib.suppress(RametError):
                await self._forget(container, "the gateway was closed")

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
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend_always(), name="tend containers")
        return container

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
        self._gone[container.owner, container.id] = container.closed or why
        while len(self._gone) > _GONE_KEPT:
            self._gone.popitem(last=False)
        await container.close(why)

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
