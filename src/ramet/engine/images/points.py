"""Kept states of living sandboxes on disk. They take no memory until a call goes back to one."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.images.records import describe
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.seams import Frozen, Machine
from ramet.errors import PointUnknown, RametError

GONE = "its image on disk is gone, or cannot be used any more"


class DiskState:
    """A kept state as an image in the store. The last holder to let go removes it.

    Spec and carried state stay in the engine: what the image says of them is not needed.
    """

    on_disk = True

    def __init__(self, machine: Machine, name: str, disk_bytes: int, snapshot: Snapshot) -> None:
        self.name = name
        self.disk_bytes = disk_bytes
        self.spec = snapshot.spec
        self.carried = snapshot.carried
        self.keep_pid = snapshot.keep_pid
        self._machine = machine
        self._holders = 1

    def __repr__(self) -> str:
        return f"<DiskState {self.name}, {self.disk_bytes >> 10} KiB, held by {self._holders}>"

    @property
    def holders(self) -> int:
        return self._holders

    def hold(self) -> None:
        self._holders += 1

    async def let_go(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            await self._machine.forget_image(self.name)

    @asynccontextmanager
    async def thawable(self) -> AsyncIterator[Frozen]:
        """The state in memory, for as long as sandboxes are made of it. Raises PointUnknown if that cannot be."""
        try:
            found = await self._machine.load_image(self.name)
        except RametError as error:
            raise PointUnknown(f"{GONE}: {error.message}") from error
        if found is None:
            raise PointUnknown(GONE)
        try:
            yield found[0]
        finally:
            await found[0].close()


async def write(machine: Machine, sandbox: Sandbox, snapshot: Snapshot, base: str | None, most: int) -> DiskState:
    """Write a state, which the caller holds; the caller holds what this returns, too. Raises RametError."""
    owner = hashlib.sha256(sandbox.owner.encode()).hexdigest()[:16]
    whose = f"{owner}-{sandbox.id}"
    name, size = await machine.write_point(snapshot.frozen, whose, describe(snapshot), base, most)
    return DiskState(machine, name, size, snapshot)
