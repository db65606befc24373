"""Snapshots that are saved on disk, under names of their owners: the next engine makes sandboxes from them as well."""

from __future__ import annotations

from ramet.engine.images.records import describe, rebuild
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.registry import Registry
from ramet.isolation.files.cache_folders import saved_image_name
from ramet.protocol.values.allowances import Allowance


async def save(registry: Registry, snapshot: Snapshot, name: str, allowance: Allowance) -> int:
    """Write a snapshot to disk. A snapshot that was saved by this name before is replaced. Returns the size in bytes.

    Raises InvalidArgument for a name that a template has, LimitReached, or RametError where it could not be written.
    """
    registry.templates.check_saving(snapshot, name, allowance)
    machine = await registry.workshop.machine()
    async with registry.snapshots.held(snapshot):
        stored = saved_image_name(snapshot.owner, name)
        size = await machine.save_image(snapshot.frozen, stored, describe(snapshot))
        await registry.snapshots.forget_name(name, snapshot.owner)
    return size


async def load(registry: Registry, name: str, owner: str) -> Snapshot | None:
    """The snapshot that was saved by this name, held by the registry from now on. None: there is none on disk."""
    machine = await registry.workshop.machine()
    found = await machine.load_image(saved_image_name(owner, name))
    if found is None:
        return None
    return await registry.snapshots.add_loaded(await rebuild(*found, owner), name)
