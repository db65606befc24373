"""The one way a sandbox comes to run: a source gives REPLs in their pods, sandboxes take them.

create    TemplateSource   NewSandbox
install   TemplateSource   NewSandbox, in no list: it installs packages for others
fork      ForkSource       NewSandbox, one for each copy
thaw      SnapshotSource   NewSandbox
resume    SnapshotSource   NewSandbox
compare   SnapshotSource   NewSandbox, in no list, closed afterwards; for diff and take
restore   SnapshotSource   the sandbox itself, which gives up the body it had
undo      PointSource      the same; also for rewind, and for a REPL that died and is restored
fork(at)  PointSource      NewSandbox, one for each copy
wake      SnapshotSource   the sandbox itself, which has no body
reopen    SnapshotSource   NewSandbox, under the id that it had
recover   _EmptiedPod      the sandbox itself, which keeps its body
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol, TypeVar

from ramet.engine.seams import Body

T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)


class Source(Protocol[S_contra]):
    """Where memory and files come from: a template, a snapshot, a running sandbox, or one in an emptied pod."""

    async def bodies(self) -> Sequence[Body]:
        """One body for each destination, all of them the caller's; or raises, and leaves nothing behind."""

    async def settle(self, sandboxes: Sequence[S_contra]) -> None:
        """Give the REPLs what they cannot know: environment and folder, or that they are copies."""


class Destination(Protocol[S_co]):
    """A sandbox that is to be made, or one that gets another body."""

    def take(self, body: Body) -> S_co:
        """Called once; what it returns owns the body. If it raises, the caller still owns the body."""

    async def give_up(self) -> None:
        """The bring-up failed, before or after ``take``."""


async def bring_up(
    source: Source[T],
    destinations: Sequence[Destination[T]],
    undo: AsyncExitStack,
    lent: bool = False,
) -> list[T]:
    """Bring up a sandbox at each destination. Raises what the source raises.

    ``undo`` closes everything that was made. The caller takes it off (``pop_all``) when the sandboxes have their users:
    a caller that fails or is cancelled before that leaves nothing behind. ``lent``: the bodies belong to their
    destinations already, and are not closed here.
    """
    bodies: list[Body] = []
    if not lent:
        undo.push_async_callback(_close_all, bodies)
    # On top of the bodies, so it runs before: a sandbox lets go of its body's descriptors before these are closed.
    undo.push_async_callback(_give_up_all, destinations)
    bodies += await source.bodies()
    # Without an await from here to ``clear``: each body has one owner at every step where this can be cancelled.
    made = [destination.take(body) for destination, body in zip(destinations, bodies, strict=True)]
    bodies.clear()
    await source.settle(made)
    return made


async def finish_all(*work: Awaitable[T]) -> list[T]:
    """All results, or the first error, but not before all are over: what follows may close what they work on."""
    done = await asyncio.gather(*work, return_exceptions=True)
    results: list[T] = []
    for one in done:
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results


async def _close_all(bodies: list[Body]) -> None:
    await asyncio.gather(*(body.close() for body in bodies))


async def _give_up_all(destinations: Sequence[Destination[object]]) -> None:
    await asyncio.gather(*(destination.give_up() for destination in destinations))
