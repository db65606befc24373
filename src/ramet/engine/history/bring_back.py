"""How a sandbox returns to a kept state, and the recovery of one whose REPL has died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from math import ceil

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.history.memory import without_memory
from ramet.engine.history.past import ENDS_ITSELF, KILLED, Past, Recovered, Step
from ramet.engine.history.point_source import PointSource, Returning, spec_at
from ramet.engine.images.points import GONE, DiskState
from ramet.engine.making.bring_up import bring_up
from ramet.engine.making.carried_state import RetiredBody
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.workshop import Workshop
from ramet.errors import PointUnknown, RametError

_TRIES = 3  # states that a recovery tries, the newest first
_WATCH_SECONDS, _LOOK_SECONDS = 0.05, 0.01

Retire = Callable[[RetiredBody], None]


async def back_to_last(workshop: Workshop, sandbox: Sandbox, retire: Retire, watch_seconds: float = 0.0) -> Recovered:
    """Go back to the newest kept state that can be thawed. The caller has the sandbox to itself. Raises RametError.

    ``watch_seconds``: how long that must live by itself, if it is suspected to end by itself.
    """
    error: RametError = PointUnknown("the sandbox has no kept state")
    kept = [step for step in sandbox.past.kept() if isinstance(step.state, Snapshot | DiskState) and not step.blank]
    for step in reversed(kept[-_TRIES:]):
        try:
            await bring_back(workshop, sandbox, step, sandbox.check_open, retire)
        except RametError as cause:
            sandbox.check_open()
            error = cause
            continue
        # Nothing but the caller's turn keeps cells away from it until this is known.
        if await _lives_on(sandbox, max(watch_seconds, _WATCH_SECONDS)):
            written = sandbox.past.written_since(step)
            return Recovered(step, sandbox.past.lose(step), written)
        sandbox.past.drop(step, ENDS_ITSELF)
        error = RametError(f"the state of point {step.id} cannot be used: {ENDS_ITSELF}")
        watch_seconds = 0.0
    raise error


async def _lives_on(sandbox: Sandbox, seconds: float) -> bool:
    """Whether the REPL is still there a moment after it was woken: one of its threads may be what ends it."""
    for _ in range(ceil(seconds / _LOOK_SECONDS)):
        await asyncio.sleep(_LOOK_SECONDS)
        sandbox.check_open()
        if not sandbox.repl.alive:
            return False
    return True


async def drop_ended(past: Past) -> None:
    """Drop the states whose frozen processes the kernel has ended."""
    kept = [(step, step.state) for step in past.kept() if isinstance(step.state, Snapshot)]
    ended = await asyncio.to_thread(without_memory, [state.frozen.shadow for _, state in kept])
    for step, state in kept:
        if state.frozen.shadow in ended and not await state.frozen.usable() and step.state is state:
            past.drop(step, KILLED)


async def bring_back(
    workshop: Workshop, sandbox: Sandbox, step: Step, check: Callable[[], None], retire: Retire
) -> None:
    """Give a sandbox that the caller has to itself the body of a kept state. Its past stays as it is.

    ``check`` raises if the sandbox is closing. Raises PointUnknown if the kernel has ended the frozen process.
    """
    state, spec = step.state, spec_at(step, sandbox.spec)
    assert state is not None
    state.hold()  # the budget of all histories may drop it during the thaw
    try:
        async with AsyncExitStack() as undone:
            machine = await workshop.machine()
            source = PointSource(machine, state, spec, sandbox.network is not None, asked=step.asked)
            await bring_up(source, [Returning(sandbox, state, spec, check, retire)], undone)
            undone.pop_all()
    except PointUnknown as error:
        sandbox.past.drop(step, GONE)
        raise PointUnknown(f"the state of point {step.id} is not kept any more: {error.message}") from error
    except RametError:
        if isinstance(state, Snapshot) and not await state.frozen.usable():
            sandbox.past.drop(step, KILLED)
            raise PointUnknown(f"the state of point {step.id} is not kept any more: {KILLED}") from None
        raise
    finally:
        await state.let_go()
    if sandbox.points is not None:
        sandbox.points.moved()
