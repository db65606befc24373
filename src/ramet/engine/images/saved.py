"""Snapshots that are saved on disk, under names of their owners: the next engine makes sandboxes from them as well."""

from __future__ import annotations

from dataclasses import replace

from ramet.engine.making.carried_state import CarriedState
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.registry import Registry
from ramet.errors import RametError
from ramet.isolation.files.cache_folders import saved_image_name
from ramet.protocol import fields
from ramet.protocol.tools.specs import GivenTools
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import SandboxSpec


async def save(registry: Registry, snapshot: Snapshot, name: str, allowance: Allowance) -> int:
    """Write a snapshot to disk. A snapshot that was saved by this name before is replaced. Returns the size in bytes.

    Raises InvalidArgument for a name that a template has, LimitReached, or RametError where it could not be written.
    """
    registry.templates.check_saving(snapshot, name, allowance)
    machine = await registry.workshop.machine()
    async with registry.snapshots.held(snapshot):
        about = _about(snapshot)
        size = await machine.save_image(snapshot.frozen, saved_image_name(snapshot.owner, name), about)
        await registry.snapshots.forget_name(name, snapshot.owner)
    return size


async def load(registry: Registry, name: str, owner: str) -> Snapshot | None:
    """The snapshot that was saved by this name, held by the registry from now on. None: there is none on disk."""
    machine = await registry.workshop.machine()
    found = await machine.load_image(saved_image_name(owner, name))
    if found is None:
        return None
    frozen, about = found
    try:
        spec = SandboxSpec.read(fields.mapping(about, "spec"))
        if spec.owner != owner:
            raise RametError(f"the image {name!r} belongs to another owner")
        carried = CarriedState(
            cells=fields.natural(about, "cells"),
            spills=fields.natural(about, "spills"),
            spilled_bytes=fields.natural(about, "spilled_bytes"),
            tools=GivenTools(()) if fields.flag(about, "had_tools") else None,
            variables=fields.text_mapping(about, "variables"),
            commands=fields.optional_text(about, "commands"),
        )
        loaded = Snapshot(frozen, spec, carried, fields.flag(about, "keep_pid"))
    except BaseException:
        await frozen.close()
        raise
    return await registry.snapshots.add_loaded(loaded, name)


def _about(snapshot: Snapshot) -> dict[str, object]:
    """What the engine itself knows of the sandbox. Nothing secret: not the values of secrets, not where they may go."""
    spec = replace(snapshot.spec, network=None, secrets=(), persistent=False)
    carried = snapshot.carried
    return {
        "spec": spec.header(),
        "cells": carried.cells,
        "spills": carried.spills,
        "spilled_bytes": carried.spilled_bytes,
        "had_tools": carried.tools is not None,
        "variables": dict(carried.variables),
        "commands": carried.commands,
        "keep_pid": snapshot.keep_pid,
    }
