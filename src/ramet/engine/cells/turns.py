"""Turns: places in a sandbox's queue for forks, merges and the like. Each has the sandbox to itself when it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

from ramet.errors import ExecutionCancelled, RametError, SandboxLost

T = TypeVar("T")


class Turn:
    """A place in one sandbox's queue. ``begun`` is done when it has come; the next one begins after ``release``.

    A sandbox that closes meanwhile fails ``begun``, or sets ``closing``, and then waits for the release. ``quiet``: it
    is the engine's own, and does not count as use of the sandbox.
    """

    def __init__(self, needs_repl: bool, leave: Callable[[Turn], None], quiet: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.needs_repl = needs_repl
        self.quiet = quiet
        self.begun: asyncio.Future[None] = loop.create_future()
        self.closing: asyncio.Future[RametError] = loop.create_future()
        self.released = asyncio.Event()
        self._leave = leave

    @property
    def abandoned(self) -> bool:
        """Whether its caller has given it up."""
        return self.released.is_set()

    def begin(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)

    def on_error(self, error: RametError) -> None:
        """It will not come, or must end soon."""
        if not self.begun.done():
            self.begun.set_exception(error)
            self.begun.exception()  # retrieved: asyncio would log it if the caller has left
        if not self.closing.done():
            self.closing.set_result(error)

    def release(self) -> None:
        """Let the next one begin. Again is harmless: a fork lets go as soon as its parent runs again."""
        if not self.released.is_set():
            self.released.set()
            self._leave(self)

    def check(self) -> None:
        """Raise SandboxClosed if the sandbox is closing: it would never close what was made in this turn."""
        if self.closing.done():
            raise self.closing.result()


class TurnQueue(Protocol):
    """The part of a sandbox's queue that is needed here."""

    def turn(self, needs_repl: bool) -> Turn: ...


class HasQueue(Protocol):
    """A sandbox."""

    @property
    def queue(self) -> TurnQueue: ...


class Caller:
    """The client of a call that takes turns. When it disconnects, turns that have not come are dropped."""

    def __init__(self) -> None:
        self.gone = False
        self._waiting: set[Turn] = set()
        self._work: asyncio.Future[Any] | None = None

    def leave(self) -> None:
        self.gone = True
        if self._work is not None:
            self._work.cancel()
        for turn in list(self._waiting):
            turn.on_error(self._cancelled())

    def queue(self, *sandboxes: HasQueue, needs_repl: bool) -> Turns:
        """A turn of one sandbox, or of several at the same time, to be awaited. Raises SandboxClosed or LimitReached.

        All are queued without an await between them: of two callers one is first in every queue, so that they cannot
        wait for each other.
        """
        turns: list[Turn] = []
        with ExitStack() as undo:
            for sandbox in sandboxes:
                turns.append(sandbox.queue.turn(needs_repl))
                undo.callback(turns[-1].release)
            undo.pop_all()
        self._waiting.update(turns)
        return Turns(self, turns)

    def waited(self, turns: list[Turn]) -> None:
        """These turns have come, or will not."""
        self._waiting.difference_update(turns)

    def check(self) -> None:
        if self.gone:
            raise self._cancelled()

    @contextmanager
    def doing(self, work: asyncio.Future[Any], turns: Sequence[Turn]) -> Iterator[None]:
        """Inside, the work is cancelled as soon as the client disconnects or a sandbox whose turn it has is closing."""

        def cancel(_: object) -> None:
            work.cancel()

        self._work = work
        for turn in turns:
            turn.closing.add_done_callback(cancel)
        if self.gone:  # it disconnected before this: ``leave`` has not seen the work
            work.cancel()
        try:
            yield
        finally:
            self._work = None
            for turn in turns:
                turn.closing.remove_done_callback(cancel)

    @staticmethod
    def _cancelled() -> RametError:
        return ExecutionCancelled("the call was cancelled before it finished")


class Turns:
    """``async with``: wait until all have come, hold them, release them."""

    def __init__(self, caller: Caller, turns: list[Turn]) -> None:
        self._caller = caller
        self._turns = turns

    async def __aenter__(self) -> list[Turn]:
        with ExitStack() as always, ExitStack() as undo:
            always.callback(self._caller.waited, self._turns)
            undo.callback(self._release)
            for turn in self._turns:
                # One that came early must not keep its sandbox from closing while the others are still to come.
                events: list[asyncio.Future[Any]] = [turn.begun, *(other.closing for other in self._turns)]
                await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
                for other in self._turns:
                    other.check()
            self._caller.check()
            undo.pop_all()
        return self._turns

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        if isinstance(error, SandboxLost):
            # The REPL was detached because its sandbox is closing: that is the error to raise.
            for turn in self._turns:
                turn.check()

    async def carry_out(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work when all have come. It is cancelled as soon as the client disconnects or a sandbox closes.

        Raises what it raises, SandboxClosed or ExecutionCancelled.
        """
        async with self as held:
            doing = asyncio.ensure_future(work())
            with self._caller.doing(doing, held):
                await asyncio.wait([doing])
            if doing.cancelled():
                for turn in held:
                    turn.check()
                self._caller.check()
            return doing.result()

    def _release(self) -> None:
        for turn in self._turns:
            turn.release()
