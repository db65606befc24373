"""Reopening: a sandbox on disk goes on in this engine, under its id."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.images.records import rebuild
from ramet.engine.making.bring_up import bring_up
from ramet.engine.making.create import check_shown
from ramet.engine.making.lifetimes import now_ms
from ramet.engine.making.sources import SnapshotSource
from ramet.engine.making.workshop import NewSandbox
from ramet.engine.network.permissions import check_allowed
from ramet.engine.registry import Registry
from ramet.engine.seams import Journal, Machine
from ramet.engine.sleeping.records import SandboxRecord
from ramet.engine.sleeping.sleepers import ENDING_SECONDS, LOOK_SECONDS
from ramet.errors import RametError, SandboxClosed
from ramet.isolation.files.cache_folders import space_image_name
from ramet.isolation.files.journals import ALIVE_ELSEWHERE
from ramet.protocol import fields
from ramet.protocol.network.specs import NetworkSpec, SecretSpec
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import Lifetime, SandboxSpec

_TOLD_CELLS = 20


@dataclass(frozen=True, slots=True)
class GivenAnew:
    """Tools, network and secrets for a sandbox that goes on. ``network`` None: the rules that it had."""

    network: NetworkSpec | None = None
    secrets: tuple[SecretSpec, ...] = ()
    lifetime: Lifetime | None = None


@dataclass(frozen=True, slots=True)
class Reopened:
    """A sandbox, and the cells that were begun after its state was written: number and code."""

    sandbox: Sandbox
    missing: tuple[tuple[int, str], ...] = ()
    changes: int = 0  # the number of the last one in its journal, or in its image


async def reopen(
    registry: Registry, sandbox_id: str, owner: str, given: GivenAnew, allowance: Allowance | None = None
) -> Reopened:
    """The sandbox of this id: as it is, if this engine has it; else as its last image on disk has it.

    Raises SandboxClosed if there is none, LimitReached, or RametError if another engine has it or its image cannot be
    used.
    """
    # One call at a time for an id: of two, both would find it absent and pour it. The journal keeps other engines away.
    async with registry.reopening(sandbox_id):
        present = registry.present(sandbox_id, owner)
        if present is not None:
            return Reopened(present)
        await registry.gone(sandbox_id)  # one that is being closed is written first
        await registry.write_unwritten(sandbox_id, owner)
        machine = await registry.workshop.machine()
        name = space_image_name(owner, sandbox_id)
        if name not in await machine.image_names(name):
            raise SandboxClosed(
                f"there is no sandbox {sandbox_id!r:.80} on disk: it was not persistent, or was discarded",
                hint="Sandbox.kept() lists those that can be resumed",
            )
        async with AsyncExitStack() as undo:
            journal = await _free_journal(machine, name)
            undo.callback(journal.close)
            reopened = await _from_disk(registry, name, owner, journal, given, allowance)
            undo.pop_all()
        registry.sleepers.adopt(reopened.sandbox, journal, reopened.changes)
        await registry.kept.discard(sandbox_id, owner)
        return reopened


async def _free_journal(machine: Machine, name: str) -> Journal:
    """An engine that was killed has its sandboxes until the kernel has ended it: that is waited for."""
    loop = asyncio.get_running_loop()
    end = loop.time() + ENDING_SECONDS
    while True:
        try:
            return await machine.open_journal(name)
        except RametError as error:
            if error.details.get("cause") != ALIVE_ELSEWHERE or loop.time() > end:
                raise
        await asyncio.sleep(LOOK_SECONDS)


async def _from_disk(
    registry: Registry, name: str, owner: str, journal: Journal, given: GivenAnew, allowance: Allowance | None
) -> Reopened:
    workshop = registry.workshop
    contents = journal.contents()
    if allowance is None:
        allowance = workshop.quotas.known_or(owner, lambda: Allowance.read(contents.about))
    machine = await workshop.machine()
    found = await machine.load_image(name)
    if found is None:
        raise SandboxClosed(f"the image of sandbox {name!r} is not on disk any more")
    frozen, about = found
    snapshot = await rebuild(frozen, about, owner)
    try:
        record = SandboxRecord.read(fields.mapping(about, "sandbox"))
        spec = _spec(snapshot.spec, record, given, _expires_ms(contents.about, record))
        check_shown(registry.settings, spec)
        check_allowed(spec.network, allowance)
        async with AsyncExitStack() as undo:
            undo.enter_context(workshop.quotas.reserve(owner, allowance, 1, spec.limits.memory_bytes))
            network = await workshop.new_network(spec, snapshot.carried)
            new = NewSandbox(workshop, spec, network, snapshot.carried, record.parent, sandbox_id=record.id)
            source = SnapshotSource(machine, snapshot, spec.limits, spec.mounts, network is not None)
            (sandbox,) = await bring_up(source, [new], undo)
            sandbox.past = record.past(spec.history)
            missing = tuple(cell for cell in contents.cells if cell[0] > snapshot.carried.cells)
            if missing:
                # Their numbers are not given again: they name cells that have run.
                sandbox.identity.carried.cells = max(cell_id for cell_id, _ in missing)
            changed = [what for number, what in contents.changes if number > record.changes]
            if note := _note(record, missing, changed, given, snapshot.carried.cells):
                sandbox.recovery.tell_next_cell(note)
            sandbox.clock.created_ms = record.created_ms
            registry.add([sandbox])
            undo.pop_all()
    finally:
        await snapshot.let_go()
    # Numbers are not given again: until another image is written, those that are missing stay in the journal.
    return Reopened(sandbox, missing, max((number for number, _ in contents.changes), default=record.changes))


def _expires_ms(about: Mapping[str, object], record: SandboxRecord) -> int | None:
    """When it ends, as its journal says: that may have changed since its image was written."""
    found = about.get("expires_ms")
    return found if type(found) is int else record.expires_ms


def _spec(frozen: SandboxSpec, record: SandboxRecord, given: GivenAnew, expires_ms: int | None) -> SandboxSpec:
    lifetime = given.lifetime or frozen.lifetime
    if given.lifetime is None and expires_ms is not None and not record.persistent:
        lifetime = replace(lifetime, timeout_seconds=max((expires_ms - now_ms()) / 1000, 1.0))
    network = record.network if given.network is None else given.network
    return replace(frozen, persistent=record.persistent, network=network, secrets=given.secrets, lifetime=lifetime)


def _note(
    record: SandboxRecord, missing: tuple[tuple[int, str], ...], changed: Sequence[str], given: GivenAnew, cells: int
) -> str:
    parts = []
    gone = []
    if missing:
        numbers = ", ".join(str(cell_id) for cell_id, _ in missing[:_TOLD_CELLS])
        more = f" and {len(missing) - _TOLD_CELLS} more" if len(missing) > _TOLD_CELLS else ""
        gone.append(f"the work of cell {numbers}" if len(missing) == 1 else f"the work of cells {numbers}{more}")
    gone += list(dict.fromkeys(changed))[-_TOLD_CELLS:]
    if gone:
        where = f"after cell {cells}" if cells else "that it began with"
        what = f"{gone[0]} is missing" if len(gone) == 1 else f"these are missing: {', '.join(gone)}"
        parts.append(f"the engine of this sandbox ended; it is back at the state {where}, and {what}")
    lost = sorted(set(record.secrets) - {secret.name for secret in given.secrets})
    if lost:
        parts.append(f"its secrets {', '.join(lost)} were not given again, and are placeholders only")
    return "; ".join(parts)


async def revive(registry: Registry, sandbox_id: str, owner: str | None) -> None:
    """Have a sandbox again that an earlier engine of this server had, if there is one. Raises RametError."""
    await registry.sleepers.find()
    one = registry.sleepers.find_dormant(sandbox_id, owner)
    if one is not None:
        # Shielded: one of the callers being cancelled must not stop what the others wait for.
        await asyncio.shield(asyncio.ensure_future(reopen(registry, one.id, one.owner, GivenAnew())))
