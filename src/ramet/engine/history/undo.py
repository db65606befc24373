"""The ways back that a client asks for: undo and rewind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller, Turns
from ramet.engine.history.bring_back import bring_back
from ramet.engine.history.past import Past, Step
from ramet.engine.registry import Registry
from ramet.protocol.lazy_dataclasses import dataclass

_CONNECTIONS_AT_MOST = 50


@dataclass(frozen=True, slots=True)
class WentBack:
    """The step that a sandbox is at, and what happened after it."""

    step: Step
    cell_ids: tuple[int, ...]
    tool_calls: tuple[str, ...]
    connections: tuple[str, ...]
    writable_mounts: tuple[str, ...]


def undo(registry: Registry, sandbox: Sandbox, count: int, caller: Caller) -> Awaitable[WentBack]:
    """Go back to the state before the last steps. The turn is in the queue when this returns.

    Raises SandboxClosed or LimitReached; awaited, InvalidArgument, PointUnknown or ForkFailed.
    """
    turns = caller.queue(sandbox, needs_repl=False)
    return _go_back(registry, sandbox, lambda past: past.before(count), turns)


def rewind(registry: Registry, sandbox: Sandbox, point_id: str, caller: Caller) -> Awaitable[WentBack]:
    """Go back to a kept state. The turn is in the queue when this returns. Raises as ``undo`` does."""
    turns = caller.queue(sandbox, needs_repl=False)
    return _go_back(registry, sandbox, lambda past: past.find(point_id), turns)


async def _go_back(registry: Registry, sandbox: Sandbox, choose: Callable[[Past], Step], turns: Turns) -> WentBack:
    async with turns as (turn,):
        # Not before the turn: cells that were in the queue are part of the past now.
        step = choose(sandbox.past)
        await bring_back(registry.workshop, sandbox, step, turn.check, registry.retire)
        sandbox.changed(f"the return to {step.where()}")
        return _told(sandbox, step, sandbox.past.truncate(step))


def _told(sandbox: Sandbox, step: Step, gone: list[Step]) -> WentBack:
    tools = dict.fromkeys(name for one in gone for name in one.tools)
    network = sandbox.network
    since = [] if network is None else network.log.since(step.attempts)
    connections = dict.fromkeys(f"{attempt.host}:{attempt.port}" for attempt in since if attempt.allowed)
    step.attempts = sandbox.attempts
    return WentBack(
        step,
        tuple(one.cell_id for one in gone if one.kind == "cell"),
        tuple(tools),
        tuple(connections)[:_CONNECTIONS_AT_MOST],
        tuple(mount.target for mount in sandbox.spec.mounts if mount.writable),
    )
