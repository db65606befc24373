"""The sandboxes of one engine that are on disk, or were."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller
from ramet.engine.making.carried_state import RetiredBody
from ramet.engine.making.workshop import Workshop
from ramet.engine.sleeping.hibernation import hibernate
from ramet.errors import RametError
from ramet.isolation.files.cache_folders import space_image_name

Perform = Callable[[Coroutine[object, object, None]], asyncio.Task[None]]


class Sleepers:
    """Puts sandboxes to sleep, and removes their images when they end. Sandboxes wake by themselves."""

    def __init__(self, workshop: Workshop, perform: Perform) -> None:
        self._workshop = workshop
        self._perform = perform
        self._written: set[str] = set()  # ids of sandboxes that have an image

    def __repr__(self) -> str:
        return f"<Sleepers, {len(self._written)} with images>"

    def hibernate(self, sandbox: Sandbox, caller: Caller) -> Awaitable[int]:
        """Put a sandbox to sleep. The turn is in its queue when this returns. Awaited: bytes on disk."""
        work = hibernate(self._workshop, sandbox, caller, self._retire)
        self._written.add(sandbox.id)  # also if it fails: an earlier image may be there
        return work

    def _retire(self, retired: RetiredBody) -> Awaitable[None]:
        return self._perform(retired.close())

    async def close(self, sandboxes: Iterable[Sandbox], server: bool) -> None:
        """The engine ends. Images of sandboxes that are not persistent go, but a server has those that sleep again."""
        for sandbox in sandboxes:
            if not sandbox.spec.persistent and not (server and sandbox.sleep.asleep):
                await self.forget(sandbox)

    async def forget(self, sandbox: Sandbox) -> None:
        """Remove the image of a sandbox that has ended."""
        if sandbox.id in self._written:
            self._written.discard(sandbox.id)
            machine = self._workshop.machine_if_started()
            if machine is not None:
                with suppress(RametError):
                    await machine.forget_image(space_image_name(sandbox.owner, sandbox.id))
