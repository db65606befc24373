"""Recover: a sandbox whose REPL has ended gets a fresh one from its template, in the same pod and with its files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from ramet.engine.making.bring_up import bring_up
from ramet.engine.seams import Body


class Recovering(Protocol):
    """The part of a sandbox that is needed here."""

    body: Body

    def start_repl_again(self) -> None:
        """Drive the fresh REPL. Raises SandboxClosed if the sandbox is closing."""

    def give_up_repl(self) -> None: ...
    async def configure(self) -> None: ...


async def recover(sandbox: Recovering) -> None:
    """Raises LimitReached, TemplateFailed, SandboxLost or SandboxClosed; the next cell tries again."""
    async with AsyncExitStack() as undo:
        await bring_up(_EmptiedPod(sandbox.body), [_Recovered(sandbox)], undo, lent=True)
        undo.pop_all()


class _EmptiedPod:
    """The source of a recovery: the sandbox's own pod, emptied, and the template thawed into it again."""

    def __init__(self, body: Body) -> None:
        self._body = body

    async def bodies(self) -> Sequence[Body]:
        await self._body.revive()
        return (self._body,)

    async def settle(self, sandboxes: Sequence[Recovering]) -> None:
        for sandbox in sandboxes:
            await sandbox.configure()


class _Recovered:
    """A sandbox as the destination of its own body."""

    def __init__(self, sandbox: Recovering) -> None:
        self._sandbox = sandbox

    def take(self, body: Body) -> Recovering:
        self._sandbox.start_repl_again()
        return self._sandbox

    async def give_up(self) -> None:
        self._sandbox.give_up_repl()  # not configured is not usable: the next cell tries again from the start
