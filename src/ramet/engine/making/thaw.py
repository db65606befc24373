"""Snapshot, and what is made of one: a new sandbox, one to compare with, or the earlier state of a sandbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller, Turn, Turns
from ramet.engine.history.past import AskedOnTop
from ramet.engine.images.saved import load
from ramet.engine.making.bring_up import bring_up
from ramet.engine.making.carried_state import RetiredBody
from ramet.engine.making.create import check_shown
from ramet.engine.making.snapshots import Snapshot, freeze
from ramet.engine.making.sources import SnapshotSource
from ramet.engine.making.workshop import NewSandbox
from ramet.engine.network.permissions import check_allowed
from ramet.engine.registry import Registry
from ramet.engine.seams import Body
from ramet.errors import RametError, SandboxClosed
from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.checks import check_template_name, check_thaw
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import Lifetime, SandboxSpec, ThawSpec

_ANY = Allowance()


def snapshot(registry: Registry, sandbox: Sandbox, caller: Caller) -> Awaitable[Snapshot]:
    """Freeze a sandbox, which goes on. The turn is in its queue when this returns. Raises LimitReached, ForkFailed."""
    registry.snapshots.check_room(sandbox.owner)
    return _snapshot(registry, sandbox, caller, caller.queue(sandbox, needs_repl=True))


async def _snapshot(registry: Registry, sandbox: Sandbox, caller: Caller, turns: Turns) -> Snapshot:
    async with turns:
        # Checked again: many may have waited for their turns when there was room for one.
        with registry.snapshots.room(sandbox.owner):
            made = await freeze(await registry.workshop.machine(), sandbox)
            async with AsyncExitStack() as undo:
                undo.push_async_callback(made.let_go)
                caller.check()  # a snapshot of a caller that disconnected would never be closed
                registry.snapshots.add(made)
                undo.pop_all()
    return made


async def thaw(
    registry: Registry, spec: ThawSpec, caller: Caller, owner: str | None = None, allowance: Allowance = _ANY
) -> Sandbox:
    """A new sandbox in the state of a snapshot, with what was asked for on top."""
    snapshots = registry.snapshots
    if spec.name is not None:
        check_template_name(spec.name, "template")
        saved = await load(registry, spec.name, owner or "")
        if saved is None:
            raise wrong_argument(
                "template", f"there is no template {spec.name!r:.100}, and no snapshot is saved under that name"
            )
        found = saved
    else:
        found = snapshots.find(spec.snapshot or "", owner)
    return await _thaw(registry, found, spec, caller, allowance, spec.persistent)


async def resume(
    registry: Registry,
    space_id: str,
    spec: ThawSpec,
    persistent: bool,
    caller: Caller,
    owner: str | None = None,
    allowance: Allowance = _ANY,
) -> Sandbox:
    """A new sandbox in the state that a persistent one had when it ended."""
    found = await registry.kept_snapshot(space_id, owner)
    if found is None:
        raise _nothing_kept(registry, space_id, owner)
    return await _thaw(registry, found, spec, caller, allowance, persistent, parent=space_id)


def _nothing_kept(registry: Registry, space_id: str, owner: str | None) -> RametError:
    ended = registry.tombstones.find(space_id, owner)
    if ended is None:
        if any(sandbox.id == space_id for sandbox in registry.all_of(owner)):
            return wrong_argument(
                "space", f"space must be the id of a persistent sandbox that has ended; {space_id} is still alive"
            )
        return SandboxClosed(f"there is no space {space_id!r:.80}; it may have been discarded")
    why = "it was not persistent, or was discarded" if ended.unkept is None else f"it could not be kept: {ended.unkept}"
    return SandboxClosed(f"sandbox {space_id} kept no state: {why}")


async def _thaw(
    registry: Registry,
    found: Snapshot,
    spec: ThawSpec,
    caller: Caller,
    allowance: Allowance,
    persistent: bool = False,
    parent: str | None = None,
) -> Sandbox:
    whole = replace(check_thaw(spec, found.spec), persistent=persistent)
    check_allowed(whole.network, allowance)
    check_shown(registry.settings, whole)
    registry.check_keeping(whole)
    workshop = registry.workshop
    with workshop.quotas.reserve(whole.owner, allowance, 1, whole.limits.memory_bytes):
        async with AsyncExitStack() as undo:
            # Held: a client may close the snapshot during the thaw.
            async with registry.snapshots.held(found):
                machine = await workshop.machine()
                network = await workshop.new_network(whole, found.carried)
                new = NewSandbox(workshop, whole, network, found.carried, parent)
                asked = dict(spec.environment), spec.cwd
                source = SnapshotSource(machine, found, whole.limits, whole.mounts, network is not None, asked)
                made = await bring_up(source, [new], undo)
                made[0].past.begin(found, AskedOnTop(*asked, made[0].spec) if any(asked) else None)
            caller.check()  # a sandbox of a caller that disconnected would never be closed
            registry.add(made)
            undo.push_async_callback(registry.forget, made[0].id)
            await registry.sleepers.watch(made[0])
            undo.pop_all()
    return made[0]


async def thaw_hidden(registry: Registry, found: Snapshot, closing: AsyncExitStack) -> Sandbox:
    """A snapshot as a sandbox without a network that no list shows, to be compared with another.

    ``closing`` closes it, also when all goes well. The caller holds the snapshot and has reserved quota.
    """
    machine = await registry.workshop.machine()
    spec = replace(found.spec, lifetime=Lifetime(), persistent=False)
    new = NewSandbox(registry.workshop, spec, carried=found.carried)
    source = SnapshotSource(machine, found, spec.limits, spec.mounts)
    (sandbox,) = await bring_up(source, [new], closing)
    return sandbox


def restore(registry: Registry, sandbox: Sandbox, found: Snapshot, caller: Caller) -> Awaitable[None]:
    """The sandbox goes back to a snapshot's state. Its id, limits and mounts stay, and so do cells in its queue.

    The turn is in the queue, and the snapshot held, when this returns.
    """
    turns = caller.queue(sandbox, needs_repl=False)
    found.hold()
    return _restore(registry, sandbox, found, turns)


async def _restore(registry: Registry, sandbox: Sandbox, found: Snapshot, turns: Turns) -> None:
    try:
        async with turns as (turn,), AsyncExitStack() as undo:
            own = sandbox.spec
            machine = await registry.workshop.machine()
            source = SnapshotSource(machine, found, own.limits, own.mounts, sandbox.network is not None)
            spec = replace(found.spec, limits=own.limits, mounts=own.mounts)
            await bring_up(source, [_Restored(sandbox, turn, spec, found, registry.retire)], undo)
            undo.pop_all()
            sandbox.changed("the return to the state of a snapshot")
            sandbox.past.add_restore(found, sandbox.attempts)
            if sandbox.points is not None:
                sandbox.points.moved()
    finally:
        await found.let_go()


@dataclass(frozen=True, slots=True)
class _Restored:
    """A sandbox as the destination of a body that is to replace its own."""

    sandbox: Sandbox
    turn: Turn
    spec: SandboxSpec
    snapshot: Snapshot
    retire: Callable[[RetiredBody], None]

    def take(self, body: Body) -> Sandbox:
        self.turn.check()  # the sandbox may have begun to close during the thaw, and would never close this body
        self.retire(self.sandbox.become(body, self.spec, self.snapshot.carried))
        return self.sandbox

    async def give_up(self) -> None:
        """The sandbox keeps the body it has: its own, or the new one, which a cell can still revive."""
