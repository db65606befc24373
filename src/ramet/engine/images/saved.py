"""Snapshots that are saved on disk, under names of their owners: the next engine makes sandboxes from them as well."""

from __future__ import annotations

from ramet.engine.images.disk_quota import check_bytes
from ramet.engine.images.records import describe, rebuild
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.registry import Registry
from ramet.isolation.files.cache_folders import saved_image_name
from ramet.protocol import fields
from ramet.protocol.checks import check_template_name
from ramet.protocol.values.allowances import Allowance


async def save(registry: Registry, snapshot: Snapshot, name: str, allowance: Allowance) -> int:
    """Write a snapshot to disk. A snapshot that was saved by this name before is replaced. Returns the size in bytes.

    Raises InvalidArgument for a name that a template has, LimitReached, or RametError where it could not be written.
    """
    machine = await registry.workshop.machine()
    prefix = saved_image_name(snapshot.owner, "")
    on_disk = {each.removeprefix(prefix) for each in await machine.image_names(prefix)}
    registry.templates.check_saving(snapshot, name, allowance, on_disk)
    await check_bytes(machine, snapshot.owner, allowance)
    async with registry.snapshots.held(snapshot):
        stored = saved_image_name(snapshot.owner, name)
        size = await machine.save_image(snapshot.frozen, stored, describe(snapshot))
        await registry.snapshots.forget_name(name, snapshot.owner)
    return size


async def load(registry: Registry, name: str, owner: str) -> Snapshot | None:
    """The snapshot that was saved by this name, held by the registry from now on. None: there is none.

    What another program has saved by the name since, or removed, is seen: the disk says what a name means.
    """
    # One caller reads it, others wait for that; and what is read counts as a snapshot that its owner holds.
    async with registry.snapshots.loading(name, owner):
        known = registry.snapshots.find_saved(name, owner)
        if known is not None and not known.image_id:
            return known  # in memory only
        machine = await registry.workshop.machine()
        stored = saved_image_name(owner, name)
        on_disk = await machine.image_id(stored)
        if known is not None:
            if on_disk == known.image_id:
                return known
            await registry.snapshots.forget_name(name, owner)
        if on_disk is None:
            return None
        with registry.snapshots.room(owner):
            found = await machine.load_image(stored)
            if found is None:
                return None
            frozen, about = found
            snapshot = await rebuild(frozen, about, owner)
            snapshot.image_id = fields.text(about, "image_id")
            return registry.snapshots.add_loaded(snapshot, name)


async def remove(registry: Registry, name: str, owner: str) -> None:
    """Remove what an owner has saved by a name, from memory and from disk. Does nothing if there is nothing."""
    check_template_name(name)
    async with registry.snapshots.loading(name, owner):
        machine = await registry.workshop.machine()
        await machine.forget_image(saved_image_name(owner, name))
        await registry.snapshots.forget_name(name, owner)
