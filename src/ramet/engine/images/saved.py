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
    machine = await registry.workshop.machine()
    prefix = saved_image_name(snapshot.owner, "")
    on_disk = {each.removeprefix(prefix) for each in await machine.image_names(prefix)}
    registry.templates.check_saving(snapshot, name, allowance, on_disk)
    async with registry.snapshots.held(snapshot):
        stored = saved_image_name(snapshot.owner, name)
        size = await machine.save_image(snapshot.frozen, stored, describe(snapshot))
        await registry.snapshots.forget_name(name, snapshot.owner)
    return size


async def load(registry: Registry, name: str, owner: str) -> Snapshot | None:
    """The snapshot that was saved by this name, held by the registry from now on. None: there is none on disk."""
    # One caller reads it, others wait for that; and what is read counts as a snapshot that its owner holds.
    async with registry.snapshots.loading(name, owner):
        known = registry.snapshots.find_saved(name, owner)
        if known is not None:
            return known
        machine = await registry.workshop.machine()
        stored = saved_image_name(owner, name)
        if stored not in await machine.image_names(stored):
            return None
        with registry.snapshots.room(owner):
            found = await machine.load_image(stored)
            if found is None:
                return None
            return registry.snapshots.add_loaded(await rebuild(*found, owner), name)
