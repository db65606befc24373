"""Kept state of persistent sandboxes: a snapshot taken when they ended, under their ids, to be resumed.

Clients call it a space.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

from ramet.engine.making.snapshots import Snapshot
from ramet.engine.settings import Settings
from ramet.errors import LimitReached, RametError
from ramet.protocol.lazy_dataclasses import dataclass


@dataclass(slots=True, eq=False)
class KeptState:
    """The last state of a persistent sandbox that has ended, kept under the id of the sandbox.

    ``snapshot`` is done when the sandbox is frozen, or fails if it could not be frozen. ``unwritten``: what its image
    says of the sandbox besides, if that could not be written: then what is on disk is an earlier state, or none, of
    ``replaced_bytes``.
    """

    id: str
    owner: str
    snapshot: asyncio.Future[Snapshot]
    unwritten: Mapping[str, object] | None = None
    replaced_bytes: int = 0


class KeptStates:
    """Owns the kept states of one engine. They stay until they are discarded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._by_id: dict[str, KeptState] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def rows(self, owner: str | None) -> list[dict[str, object]]:
        return [{"id": one.id, "owner": one.owner} for one in self._by_id.values() if owner in (None, one.owner)]

    def check_room(self, owner: str, expected: int, expected_of_owner: int) -> None:
        """Raise LimitReached if one more persistent sandbox, beside those that live, could not be kept when it ends."""
        of_owner = sum(space.owner == owner for space in self._by_id.values()) + expected_of_owner
        if of_owner >= self._settings.spaces_of_an_owner:
            raise LimitReached(
                f"cannot keep another persistent sandbox: there are {of_owner} already, including ended ones",
                hint="discard spaces that you no longer need",
            )
        if len(self._by_id) + expected >= self._settings.spaces:
            raise LimitReached("cannot keep another persistent sandbox: the engine has reached its limit")

    async def keep(self, sandbox_id: str, owner: str, work: Awaitable[Snapshot]) -> None:
        """Keep the snapshot that ``work`` takes; raises what it raises, and then nothing is kept."""
        space = KeptState(sandbox_id, owner, asyncio.get_running_loop().create_future())
        self._by_id[sandbox_id] = space  # before the freeze: a caller that resumes it meanwhile waits for the snapshot
        try:
            snapshot = await work
        except BaseException as error:
            if self._by_id.get(sandbox_id) is space:  # else it was discarded during the freeze
                del self._by_id[sandbox_id]
            lost = (
                error
                if isinstance(error, RametError)
                else RametError(f"the state of the sandbox could not be kept: {error}")
            )
            space.snapshot.set_exception(lost)
            space.snapshot.exception()  # retrieved: asyncio would log an error that no caller waits for
            raise
        space.snapshot.set_result(snapshot)
        if self._by_id.get(sandbox_id) is not space:
            await snapshot.let_go()  # it was discarded during the freeze

    async def add_loaded(self, space_id: str, snapshot: Snapshot) -> KeptState:
        """Keep one that was read from disk. Another caller may have read it first: then that one stays."""
        known = self._by_id.get(space_id)
        if known is not None:
            await snapshot.let_go()
            return known
        space = self._by_id[space_id] = KeptState(space_id, snapshot.owner, asyncio.get_running_loop().create_future())
        space.snapshot.set_result(snapshot)
        return space

    def find(self, space_id: str, owner: str | None) -> KeptState | None:
        space = self._by_id.get(space_id)
        return None if space is None or owner not in (None, space.owner) else space

    async def discard(self, space_id: str, owner: str | None) -> None:
        """Ignores an id that does not exist or belongs to another owner."""
        space = self.find(space_id, owner)
        if space is not None:
            del self._by_id[space_id]
            if space.snapshot.done():
                await space.snapshot.result().let_go()

    async def close(self) -> None:
        """To be called after the sandboxes were closed, which ends freezes under way."""
        for space in tuple(self._by_id.values()):
            if not space.snapshot.done():
                await asyncio.wait([space.snapshot])
            await self.discard(space.id, None)
