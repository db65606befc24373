"""What is done to sandboxes by way of others: fork, snapshot and thaw, restore, merge, diff."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple, TypeVar

from ramet.engine.comparing import compare_names
from ramet.engine.network.allowing import check_allowed
from ramet.engine.network.preparing import open_door
from ramet.engine.registry import Registry
from ramet.engine.rooms import Room
from ramet.engine.sandbox import Sandbox
from ramet.engine.seams import Body, Forked, Machine
from ramet.engine.snapshots import Snapshot, freeze, settle
from ramet.engine.turn import Caller, Turn, Turns
from ramet.errors import ForkFailed, RametError, SandboxClosed, SandboxLost
from ramet.protocol.allowances import Allowance
from ramet.protocol.checks import check_thaw
from ramet.protocol.forks import Diff, ForkInfo
from ramet.protocol.guest import Names
from ramet.protocol.refusing import wrong_argument
from ramet.protocol.specs import Lifetime, ThawSpec

T = TypeVar("T")

_ANY = Allowance()


class Children(NamedTuple):
    """What a fork made, and what it cost: all of them together, and each."""

    sandboxes: list[Sandbox]
    info: ForkInfo
    each: list[ForkInfo]


def fork(
    registry: Registry,
    parent: Sandbox,
    count: int,
    reseed: bool,
    caller: Caller,
    allowance: Allowance = _ANY,
    inherit_secrets: bool = False,
) -> Awaitable[Children]:
    """So many copies of a sandbox, each able to take a cell; or an error, and the parent goes on.

    Each has its parent's rules, and a network of its own; secrets only if they are to be inherited.
    """
    check_allowed(parent.network.spec if parent.network is not None else None, allowance)
    room = registry.rooms.take(parent.owner, allowance, count, parent.spec.limits.memory_bytes)
    try:
        turns = caller.queue(parent, needs_repl=True)
    except BaseException:
        room.leave()
        raise
    return _fork(registry, parent, count, reseed, caller, turns, room, inherit_secrets)


async def _fork(
    registry: Registry,
    parent: Sandbox,
    count: int,
    reseed: bool,
    caller: Caller,
    turns: Turns,
    room: Room,
    inherit_secrets: bool,
) -> Children:
    with room:
        async with turns as (turn,):
            began = perf_counter()
            # Cells were not all that ran before this turn: with a merge the parent has the limits of the winner.
            registry.rooms.grow(room, count * parent.spec.limits.memory_bytes)
            keep_pid = await settle(parent)
            # Its children are not persistent: nobody has asked to keep them.
            spec, past, network = replace(parent.spec, persistent=False), parent.past, parent.network
            machine = await registry.started_machine()
            # The parent's next cell may run as soon as it is frozen: what follows is its children's business.
            forked = await machine.fork(parent.body, count, keep_pid, turn.release)
        sandboxes: list[Sandbox] = []
        try:
            for body in forked.bodies:
                own = network.for_copy(inherit_secrets) if network is not None else None
                sandboxes.append(registry.new_sandbox(spec, body, past, parent.id, own))
            if reseed or keep_pid:
                await _tell(sandboxes, reseed, stir=keep_pid)
            caller.check()  # children of a caller that went away are nobody's
            registry.add(sandboxes)
        except BaseException:
            await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
            await asyncio.gather(*(body.close() for body in forked.bodies))
            raise
        return _counted(sandboxes, forked, perf_counter() - began)


def snapshot(registry: Registry, sandbox: Sandbox, caller: Caller) -> Awaitable[Snapshot]:
    registry.snapshots.check_room(sandbox.owner)
    return _snapshot(registry, sandbox, caller, caller.queue(sandbox, needs_repl=True))


async def _snapshot(registry: Registry, sandbox: Sandbox, caller: Caller, turns: Turns) -> Snapshot:
    async with turns:
        # Asked again: many may have waited for their turns when there was room for one.
        with registry.snapshots.room(sandbox.owner):
            made = await freeze(await registry.started_machine(), sandbox)
            try:
                caller.check()
            except BaseException:
                await made.let_go()
                raise
            registry.snapshots.add(made)
    return made


async def thaw(
    registry: Registry, spec: ThawSpec, caller: Caller, owner: str | None = None, allowance: Allowance = _ANY
) -> Sandbox:
    """A new sandbox in the state of a snapshot, with what was asked for on top."""
    snapshots = registry.snapshots
    if spec.name is not None:
        found = snapshots.find_saved(spec.name, owner)
    else:
        found = snapshots.find(spec.snapshot or "", owner)
    return await _thaw(registry, found, spec, caller, allowance)


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
    space = registry.spaces.find(space_id, owner)
    if space is None:
        raise _no_space(registry, space_id, owner)
    found = await asyncio.shield(space.snapshot)
    return await _thaw(registry, found, spec, caller, allowance, persistent, parent=space_id)


def _no_space(registry: Registry, space_id: str, owner: str | None) -> RametError:
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
    registry.check_shown(whole)
    registry.check_space(whole)
    with registry.rooms.take(whole.owner, allowance, 1, whole.limits.memory_bytes):
        async with registry.snapshots.held(found):
            machine = await registry.started_machine()
            network = await registry.new_network(whole, found.past)
            try:
                body = await machine.thaw(found.frozen, whole.limits, whole.mounts)
                if network is not None:
                    await _open_door(body)
            except BaseException:
                if network is not None:
                    network.close()
                raise
        sandbox = registry.new_sandbox(whole, body, found.past, parent, network)
        try:
            if found.keep_pid:
                await sandbox.repl.thawed(reseed=False, stir=True)
            await sandbox.adjust(dict(spec.environment), spec.cwd)
            caller.check()
            registry.add([sandbox])
        except BaseException:
            await sandbox.close()
            raise
        return sandbox


def restore(registry: Registry, sandbox: Sandbox, found: Snapshot, caller: Caller) -> Awaitable[None]:
    """The sandbox goes back to a snapshot's state. Its id, limits and mounts stay, and so do cells in its queue."""
    turns = caller.queue(sandbox, needs_repl=False)
    found.hold()
    return _restore(registry, sandbox, found, turns)


async def _restore(registry: Registry, sandbox: Sandbox, found: Snapshot, turns: Turns) -> None:
    try:
        async with turns as (turn,):
            await _become(registry, await registry.started_machine(), sandbox, found, turn)
    finally:
        await found.let_go()


async def _open_door(body: Body) -> None:
    """In one that was thawed; it is closed if there can be none."""
    try:
        await open_door(body, "the snapshot was not thawed")
    except BaseException:
        await body.close()
        raise


async def _become(registry: Registry, machine: Machine, sandbox: Sandbox, found: Snapshot, turn: Turn) -> None:
    own = sandbox.spec
    body = await machine.thaw(found.frozen, own.limits, own.mounts)
    if sandbox.network is not None:
        await _open_door(body)
    if turn.closing.done():
        await body.close()
        turn.check()
    spec = replace(found.spec, limits=own.limits, mounts=own.mounts)
    registry.retire(sandbox.become(body, spec, found.past))
    if found.keep_pid:
        await sandbox.repl.thawed(reseed=False, stir=True)


def merge(registry: Registry, parent: Sandbox, winner: Sandbox, caller: Caller) -> Awaitable[None]:
    """The parent's id now names what the winner is; what the parent was is closed, and the winner's id is no more."""
    if parent is winner:
        raise wrong_argument("winner", "winner must be another sandbox, got the sandbox itself")
    return _merge(registry, parent, winner, caller.queue(parent, winner, needs_repl=False))


async def _merge(registry: Registry, parent: Sandbox, winner: Sandbox, turns: Turns) -> None:
    async with turns:
        if parent.network is not None and winner.network is None:
            await open_door(winner.body, "the sandbox was not merged")
        # From here to the end of the turn nothing is awaited: others see the one state or the other.
        registry.merged(winner, into=parent)
        registry.retire(parent.take_over(winner))


def diff(
    registry: Registry, one: Sandbox, other: Sandbox, paths: tuple[str, ...] | None, caller: Caller
) -> Awaitable[Diff]:
    """What would have to change in the one to make it the other."""
    # A sandbox cannot have two turns at once; it does not differ from itself anyway.
    turns = None if one is other else caller.queue(one, other, needs_repl=False)
    return _diff(registry, one, other, paths, caller, turns)


async def _diff(
    registry: Registry,
    one: Sandbox,
    other: Sandbox,
    paths: tuple[str, ...] | None,
    caller: Caller,
    turns: Turns | None,
) -> Diff:
    if turns is None:
        return Diff()
    async with turns as held:
        return await _compare(registry, one, other, paths, caller, held)


def diff_since(
    registry: Registry,
    sandbox: Sandbox,
    found: Snapshot,
    paths: tuple[str, ...] | None,
    caller: Caller,
) -> Awaitable[Diff]:
    """What has changed in a sandbox since a snapshot, of itself or of another."""
    room = registry.rooms.take_hidden(sandbox.owner, found.spec.limits.memory_bytes)
    try:
        turns = caller.queue(sandbox, needs_repl=False)
    except BaseException:
        room.leave()
        raise
    found.hold()
    return _diff_since(registry, sandbox, found, paths, caller, turns, room)


async def _diff_since(
    registry: Registry,
    sandbox: Sandbox,
    found: Snapshot,
    paths: tuple[str, ...] | None,
    caller: Caller,
    turns: Turns,
    room: Room,
) -> Diff:
    """The snapshot is woken as a sandbox without a network that nobody can find, and closed again."""
    try:
        with room:
            async with turns as held:
                machine = await registry.started_machine()
                spec = replace(found.spec, lifetime=Lifetime(), persistent=False)
                body = await machine.thaw(found.frozen, spec.limits, spec.mounts)
                before = registry.new_sandbox(spec, body, found.past, None, None)
                try:
                    if found.keep_pid:
                        await before.repl.thawed(reseed=False, stir=True)
                    return await _compare(registry, before, sandbox, paths, caller, held)
                finally:
                    await before.close()
    finally:
        await found.let_go()


async def _compare(
    registry: Registry,
    one: Sandbox,
    other: Sandbox,
    paths: tuple[str, ...] | None,
    caller: Caller,
    held: Sequence[Turn],
) -> Diff:
    machine = await registry.started_machine()
    files = asyncio.ensure_future(machine.diff_files(one.body, other.body, paths, one.owner))
    with caller.doing(files, held):
        try:
            before, after = await _finish(_names(one), _names(other))
        except BaseException:
            files.cancel()
            raise
        finally:
            # Not left behind, whatever happened: it looks at files that may be closed after this turn.
            await asyncio.wait([files])
    if files.cancelled():
        for turn in held:
            turn.check()
        caller.check()
    return Diff(tuple(files.result()), *compare_names(before, after))


async def _tell(sandboxes: Sequence[Sandbox], reseed: bool, stir: bool) -> None:
    try:
        await _finish(*(sandbox.repl.thawed(reseed, stir) for sandbox in sandboxes))
    except SandboxLost as error:
        raise ForkFailed(f"a child ended before it could take a cell: {error.message}") from error


async def _names(sandbox: Sandbox) -> Names:
    # A REPL that is lost has no names; the next cell will start another.
    return await sandbox.repl.names() if sandbox.repl.alive else Names({}, 0)


async def _finish(*work: Awaitable[T]) -> list[T]:
    """All results, or the first error, but not before all are over."""
    done = await asyncio.gather(*work, return_exceptions=True)
    results: list[T] = []
    for one in done:
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results


def _counted(sandboxes: list[Sandbox], forked: Forked, seconds: float) -> Children:
    bytes_of_each = [sandbox.body.unique_bytes() for sandbox in sandboxes]
    total = ForkInfo(forked.pause_seconds, seconds, sum(bytes_of_each), forked.file_bytes)
    return Children(sandboxes, total, [replace(total, unique_bytes=count) for count in bytes_of_each])
