"""Snapshots as files: exported from an engine, and imported into one as a snapshot of the caller."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing

from ramet.engine.images.disk_quota import check_bytes
from ramet.engine.images.records import describe, rebuild
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.registry import Registry
from ramet.errors import LimitReached, RametError
from ramet.isolation.files.cache_folders import passing_image_name
from ramet.protocol.import_terms import ImportTerms
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import SandboxSpec


async def exported(registry: Registry, snapshot: Snapshot) -> AsyncGenerator[bytes, None]:
    """The bytes of its file. The caller holds the snapshot. Raises RametError."""
    machine = await registry.workshop.machine()
    name = passing_image_name(snapshot.owner, secrets.token_hex(16))
    try:
        await machine.save_image(snapshot.frozen, name, describe(snapshot))
        async with aclosing(machine.export_image(name)) as pieces:
            async for piece in pieces:
                yield piece
    finally:
        await machine.forget_image(name)


async def import_snapshot(
    registry: Registry, receive: Callable[[], Awaitable[bytes | None]], spec: SandboxSpec, allowance: Allowance
) -> Snapshot:
    """A snapshot out of a file. Owner, limits and interpreter are those of the spec. Raises RametError."""
    owner, settings = spec.owner, registry.settings
    if allowance.memory_bytes is not None and spec.limits.memory_bytes > allowance.memory_bytes:
        asked, most = spec.limits.memory_bytes >> 20, allowance.memory_bytes >> 20
        raise LimitReached(
            f"cannot import with memory_mib={asked}: you may have {most}",
            hint="give a smaller memory_mib",
        )
    machine = await registry.workshop.machine()
    with registry.snapshots.room(owner):
        name = passing_image_name(owner, secrets.token_hex(16))
        interpreter = settings.interpreter or spec.template.interpreter
        room_bytes = await check_bytes(machine, owner, allowance)
        try:
            await machine.import_image(receive, ImportTerms("", name, owner, spec.limits, interpreter, room_bytes))
            found = await machine.load_image(name)
        finally:
            # Its memory is copied. What is to last on disk is saved, by a name.
            await machine.forget_image(name)
        if found is None:
            raise RametError("the image was removed while it was imported")
        made = await rebuild(*found, owner)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(made.let_go)
            registry.snapshots.add(made)
            undo.pop_all()
    return made
