"""Branches: new sandboxes from an earlier state of one that goes on."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from time import perf_counter

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller
from ramet.engine.history.point_source import PointSource, spec_at
from ramet.engine.images.points import DiskState
from ramet.engine.making.bring_up import bring_up
from ramet.engine.making.fork import ForkResult
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.workshop import NewSandbox
from ramet.engine.network.permissions import check_allowed
from ramet.engine.registry import Registry
from ramet.errors import PointUnknown, RametError
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.forks import ForkInfo


async def fork_at(
    registry: Registry,
    parent: Sandbox,
    point_id: str,
    count: int,
    reseed: bool,
    caller: Caller,
    allowance: Allowance,
    inherit_secrets: bool = False,
) -> ForkResult:
    """This many sandboxes in a kept state of another, which does not notice. They have its past up to there.

    Takes no turn: what was kept does not change. Raises PointUnknown, LimitReached or ForkFailed.
    """
    began = perf_counter()
    network = parent.network
    check_allowed(network.spec if network is not None else None, allowance)
    step = parent.past.find(point_id)
    state = step.state
    assert state is not None
    workshop = registry.workshop
    # Tools as they are now: the same client answers them.
    tools = parent.carried.tools
    carried = replace(state.carried, tools=tools) if isinstance(state, Snapshot | DiskState) else None
    spec, asked = replace(spec_at(step, parent.spec), persistent=False), step.asked
    past = parent.past.copy(step, parent.past.wanted)
    state.hold()  # the budget of all histories may drop it during the thaw
    try:
        with workshop.quotas.reserve(parent.owner, allowance, count, spec.limits.memory_bytes):
            async with AsyncExitStack() as undo:
                copy_network = partial(network.for_copy, inherit_secrets) if network is not None else None
                machine = await workshop.machine()
                source = PointSource(machine, state, spec, network is not None, count, reseed, asked)
                children = [
                    NewSandbox(workshop, spec, carried=carried, parent=parent.id, copy_network=copy_network)
                    for _ in range(count)
                ]
                sandboxes = await bring_up(source, children, undo)
                for child in sandboxes:
                    if carried is None and tools is not None:
                        await child.give_tools(tools)
                    child.past = past.copy(wanted=past.wanted)
                caller.check()  # children of a caller that disconnected would never be closed
                registry.add(sandboxes)
                undo.pop_all()
    except RametError as error:
        if isinstance(state, Snapshot) and not isinstance(error, PointUnknown) and not await state.frozen.usable():
            raise PointUnknown(f"the state of point {point_id} is not kept any more: its process was killed") from None
        raise
    finally:
        await past.close()
        await state.let_go()
    unique = [child.body.unique_bytes() for child in sandboxes]
    file_bytes = state.frozen.file_bytes if isinstance(state, Snapshot) else 0
    info = ForkInfo(0.0, perf_counter() - began, sum(unique), file_bytes)
    return ForkResult(sandboxes, info, [replace(info, unique_bytes=of_one) for of_one in unique])
