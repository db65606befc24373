"""Fork: copies of a running sandbox, which goes on."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import NamedTuple

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller, Turns
from ramet.engine.making.bring_up import bring_up
from ramet.engine.making.quotas import Reservation
from ramet.engine.making.snapshots import settle
from ramet.engine.making.sources import ForkSource
from ramet.engine.making.workshop import NewSandbox
from ramet.engine.network.permissions import check_allowed
from ramet.engine.registry import Registry
from ramet.engine.seams import Forked
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.forks import ForkInfo

_ANY = Allowance()


class ForkResult(NamedTuple):
    """The sandboxes that a fork made, and its cost: of all together, and of each."""

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
) -> Awaitable[ForkResult]:
    """This many copies of a sandbox, each able to take a cell; or an error, and the parent goes on.

    Each has the rules of its parent in a network of its own; secrets only if they are to be inherited. Quota is
    reserved and the turn is in the parent's queue when this returns: a cell that comes next comes after the fork.
    Raises LimitReached or SandboxClosed; awaited, ForkFailed too.
    """
    check_allowed(parent.network.spec if parent.network is not None else None, allowance)
    with ExitStack() as undo:
        quotas = registry.workshop.quotas
        reservation = undo.enter_context(
            quotas.reserve(parent.owner, allowance, count, parent.spec.limits.memory_bytes)
        )
        turns = caller.queue(parent, needs_repl=True)
        undo.pop_all()
    return _fork(registry, parent, count, reseed, caller, turns, reservation, inherit_secrets)


async def _fork(
    registry: Registry,
    parent: Sandbox,
    count: int,
    reseed: bool,
    caller: Caller,
    turns: Turns,
    reservation: Reservation,
    inherit_secrets: bool,
) -> ForkResult:
    workshop = registry.workshop
    with reservation:
        async with turns as (turn,), AsyncExitStack() as always, AsyncExitStack() as undo:
            began = perf_counter()
            # Cells were not all that ran before this turn: with a merge the parent has the limits of the winner.
            workshop.quotas.grow(reservation, count * parent.spec.limits.memory_bytes)
            keep_pid = await settle(parent)
            # The children are not persistent: their caller has not asked to keep them.
            spec, carried = replace(parent.spec, persistent=False), parent.carried
            past = parent.past.copy(wanted=parent.past.wanted)  # before the turn ends
            always.push_async_callback(past.close)
            copy_network = partial(parent.network.for_copy, inherit_secrets) if parent.network is not None else None
            # The turn ends as soon as the parent runs again, so that its next cell need not wait for the children.
            source = ForkSource(await workshop.machine(), parent.body, count, keep_pid, reseed, turn.release)
            children = [
                NewSandbox(workshop, spec, carried=carried, parent=parent.id, copy_network=copy_network)
                for _ in range(count)
            ]
            sandboxes = await bring_up(source, children, undo)
            for child in sandboxes:
                child.past = past.copy(wanted=past.wanted)
            caller.check()  # children of a caller that disconnected would never be closed
            registry.add(sandboxes)
            undo.pop_all()
            registry.history.forked(parent)
    assert source.forked is not None
    return _counted(sandboxes, source.forked, perf_counter() - began)


def _counted(sandboxes: list[Sandbox], forked: Forked, seconds: float) -> ForkResult:
    bytes_of_each = [sandbox.body.unique_bytes() for sandbox in sandboxes]
    total = ForkInfo(forked.pause_seconds, seconds, sum(bytes_of_each), forked.file_bytes)
    return ForkResult(sandboxes, total, [replace(total, unique_bytes=count) for count in bytes_of_each])
