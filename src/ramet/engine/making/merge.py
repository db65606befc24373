"""Merge: one sandbox goes on as another."""

from __future__ import annotations

from collections.abc import Awaitable

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller, Turns
from ramet.engine.network.prepared import open_proxy_sockets
from ramet.engine.registry import Registry
from ramet.protocol.argument_errors import wrong_argument


def merge(registry: Registry, parent: Sandbox, winner: Sandbox, caller: Caller) -> Awaitable[None]:
    """The parent's id now names what the winner is; the parent's body is closed, and the winner's id is no more.

    The turns are in both queues when this returns. Raises InvalidArgument or SandboxClosed; awaited, ForkFailed too.
    """
    if parent is winner:
        raise wrong_argument("winner", "winner must be another sandbox, got the sandbox itself")
    return _merge(registry, parent, winner, caller.queue(parent, winner, needs_repl=False))


async def _merge(registry: Registry, parent: Sandbox, winner: Sandbox, turns: Turns) -> None:
    async with turns:
        if parent.network is not None and winner.network is None:
            await open_proxy_sockets(winner.body, "the sandbox was not merged")
        # From here to the end of the turn nothing is awaited: other callers see the one state or the other.
        registry.merged(winner, into=parent)
        registry.retire(parent.take_over(winner))
