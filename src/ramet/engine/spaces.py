"""Spaces: what persistent sandboxes were when they ended, under their ids, for others to go on from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

from ramet.engine.settings import Settings
from ramet.engine.snapshots import Snapshot
from ramet.errors import LimitReached, RametError


@dataclass(slots=True, eq=False)
class Space:
    """``snapshot`` is done when the sandbox was frozen; it fails when that could not be done."""

    id: str
    owner: str
    snapshot: asyncio.Future[Snapshot]


class Spaces:
    """Owns them all. They stay until they are discarded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._by_id: dict[str, Space] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def rows(self, owner: str | None) -> list[dict[str, object]]:
        return [{"id": one.id, "owner": one.owner} for one in self._by_id.values() if owner in (None, one.owner)]

    def check_room(self, owner: str, expected: int, expected_of_owner: int) -> None:
        """For one more persistent sandbox beside those that live. Asked before it is made: later is too late."""
        of_owner = sum(space.owner == owner for space in self._by_id.values()) + expected_of_owner
        if of_owner >= self._settings.spaces_of_an_owner:
            raise LimitReached(
                f"cannot keep another persistent sandbox: there are {of_owner} already, including ended ones",
                hint="discard spaces that you no longer need",
            )
        if len(self._by_id) + expected >= self._settings.spaces:
            raise LimitReached("cannot keep another persistent sandbox: the engine has reached its limit")

    async def keep(self, sandbox_id: str, owner: str, work: Awaitable[Snapshot]) -> None:
        """Keep what ``work`` gives; raises what it raises, and then there is no space."""
        space = Space(sandbox_id, owner, asyncio.get_running_loop().create_future())
        self._by_id[sandbox_id] = space
        try:
            snapshot = await work
        except BaseException as error:
            if self._by_id.get(sandbox_id) is space:
                del self._by_id[sandbox_id]
            lost = (
                error
                if isinstance(error, RametError)
                else RametError(f"the state of the sandbox could not be kept: {error}")
            )
            space.snapshot.set_exception(lost)
            space.snapshot.exception()  # retrieved: mostly nobody waits for it
            raise
        space.snapshot.set_result(snapshot)
        if self._by_id.get(sandbox_id) is not space:
            await snapshot.let_go()  # discarded meanwhile

    def find(self, space_id: str, owner: str | None) -> Space | None:
        space = self._by_id.get(space_id)
        return None if space is None or owner not in (None, space.owner) else space

    async def discard(self, space_id: str, owner: str | None) -> None:
        """One that does not exist, or is somebody else's, is no error."""
        space = self.find(space_id, owner)
        if space is not None:
            del self._by_id[space_id]
            if space.snapshot.done():
                await space.snapshot.result().let_go()

    async def close(self) -> None:
        """After the sandboxes: what is being frozen now ends soon."""
        for space in tuple(self._by_id.values()):
            if not space.snapshot.done():
                await asyncio.wait([space.snapshot])
            await self.discard(space.id, None)
