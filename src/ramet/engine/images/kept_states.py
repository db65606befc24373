"""Kept states of persistent sandboxes on disk: they can be resumed in the next engine, too."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.engine.images.disk_quota import check_bytes
from ramet.engine.images.records import describe, rebuild
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.workshop import Workshop
from ramet.isolation.files.cache_folders import space_image_name


async def write(
    workshop: Workshop, space_id: str, snapshot: Snapshot, record: Mapping[str, object], replaced_bytes: int
) -> bool:
    """Write a kept state, which the caller holds. False: this engine keeps no images.

    Raises LimitReached where its owner has no room on disk, or RametError where it could not be written. ``record``:
    what its sandbox was besides. ``replaced_bytes``: of its last checkpoint.
    """
    machine = await workshop.machine()
    if not machine.keeps_images:
        return False
    await check_bytes(machine, snapshot.owner, workshop.quotas.allowance_of(snapshot.owner), replaced_bytes)
    about = {**describe(snapshot), "sandbox": dict(record)}
    await machine.save_image(snapshot.frozen, space_image_name(snapshot.owner, space_id), about)
    return True


async def load(workshop: Workshop, space_id: str, owner: str) -> Snapshot | None:
    """The state, the caller's. None: there is none on disk. Raises RametError where it cannot be used."""
    machine = await workshop.machine()
    found = await machine.load_image(space_image_name(owner, space_id))
    return None if found is None else await rebuild(*found, owner)


async def discard(workshop: Workshop, space_id: str, owner: str) -> None:
    machine = workshop.machine_if_started()
    if machine is not None:
        await machine.forget_image(space_image_name(owner, space_id))
