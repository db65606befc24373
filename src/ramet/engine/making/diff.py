"""Diff: files and names that differ between two sandboxes, or between a sandbox and a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack, ExitStack

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller, Turn, Turns
from ramet.engine.making.bring_up import finish_all
from ramet.engine.making.compare_names import compare_names
from ramet.engine.making.quotas import Reservation
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.thaw import thaw_hidden
from ramet.engine.registry import Registry
from ramet.protocol.guest import GuestNames
from ramet.protocol.values.forks import Diff


def diff(
    registry: Registry, one: Sandbox, other: Sandbox, paths: tuple[str, ...] | None, caller: Caller
) -> Awaitable[Diff]:
    """The changes that lead from one sandbox to the other. The turns are in both queues when this returns."""
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
    """The changes in a sandbox since a snapshot, of itself or of another.

    The turn is in the queue, quota reserved and the snapshot held when this returns. Raises LimitReached.
    """
    with ExitStack() as undo:
        memory_bytes = found.spec.limits.memory_bytes
        reservation = undo.enter_context(registry.workshop.quotas.reserve_hidden(sandbox.owner, memory_bytes))
        turns = caller.queue(sandbox, needs_repl=False)
        undo.pop_all()
    found.hold()
    return _diff_since(registry, sandbox, found, paths, caller, turns, reservation)


async def _diff_since(
    registry: Registry,
    sandbox: Sandbox,
    found: Snapshot,
    paths: tuple[str, ...] | None,
    caller: Caller,
    turns: Turns,
    reservation: Reservation,
) -> Diff:
    try:
        with reservation:
            async with turns as held, AsyncExitStack() as closing:
                before = await thaw_hidden(registry, found, closing)
                return await _compare(registry, before, sandbox, paths, caller, held)
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
    machine = await registry.workshop.machine()
    files = asyncio.ensure_future(machine.diff_files(one.body, other.body, paths, one.owner))
    with caller.doing(files, held):
        async with AsyncExitStack() as stack:
            # Not left behind, whatever happens: it looks at files that may be closed after this turn.
            stack.push_async_callback(asyncio.wait, [files])
            with ExitStack() as undo:
                undo.callback(files.cancel)
                before, after = await finish_all(_names(one), _names(other))
                undo.pop_all()
    if files.cancelled():
        for turn in held:
            turn.check()
        caller.check()
    return Diff(tuple(files.result()), *compare_names(before, after))


async def _names(sandbox: Sandbox) -> GuestNames:
    # A REPL that is lost has no names; the next cell will start another.
    return await sandbox.repl.names() if sandbox.repl.alive else GuestNames({}, 0)
