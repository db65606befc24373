"""A call of a server tool while it runs: a cell that may pause at calls of the client's tools and continue later.

    CellRun.next() -> Waiting     the code waits for these calls; answer() each, then next() again
                   -> Finished    it has ended: the block for the client, the text for the model

A run lives as long as its code and not as long as a request: the request that waits in ``next`` may end, and another
may continue. ``next(after=ids)`` returns what followed the results of these calls, again if needed, for clients that
repeat a request whose answer they did not get.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence

from ramet.doors.gateway.running.answers import Content
from ramet.doors.gateway.running.blocks import BASH, ErrorCode, execution_error, tool_result
from ramet.doors.gateway.running.clock import RunningTime
from ramet.doors.gateway.running.outcomes import CallLimits, CellRequest, ClientTool, Finished, PendingToolCall, Waiting
from ramet.doors.gateway.running.pauses import Pauses
from ramet.errors import RametError, ToolError

__all__ = ["CallLimits", "CellRequest", "CellRun", "ClientTool", "Finished", "PendingToolCall", "Waiting"]

_log = logging.getLogger("ramet.doors.gateway")

_INTERRUPT_AGAIN_SECONDS = 0.1
# The engine kills a REPL that ignores an interrupt within seconds. After this long the engine itself is broken.
_GIVE_UP_SECONDS = 60.0


class CellRun:
    """Owns the task that carries out the call. A container creates it, on the event loop."""

    def __init__(
        self, request: CellRequest, tools: Sequence[ClientTool] = (), limits: CallLimits | None = None
    ) -> None:
        self.request = request
        self.tools = tuple(tools)
        self.limits = CallLimits() if limits is None else limits
        self.timed_out = False
        self.abandoned = False
        self.told = False  # it has ended, and a request has read the outcome
        self.time = RunningTime(self.limits.cell_seconds, self._time_is_up)
        limits = self.limits
        gather_seconds = limits.gather_commands_seconds if request.name == BASH else limits.gather_seconds
        self._pauses = Pauses(limits, self.time, gather_seconds)
        self._interrupt: Callable[[], Awaitable[bool]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"waits for {len(self.calls)} calls" if self.waiting else "runs"
        return f"<CellRun {self.request.tool_use_id} {state}>"

    # For turns.

    async def next(self, after: Collection[str] | None = None) -> Waiting | Finished:
        """The next outcome, or the one that followed the results of these calls. May be cancelled at any time."""
        outcome = await self._pauses.next(after)
        if isinstance(outcome, Finished):
            self.told = True
        return outcome

    def answer(self, tool_use_id: str, content: Content, is_error: bool = False) -> None:
        """Give a call its result. Ignores a repeated result, and one that comes too late. Raises AnswerRefused."""
        self._pauses.answer(tool_use_id, content, is_error)

    async def abandon(self) -> None:
        """Interrupt the code, because no client will answer its calls. Returns when it has ended."""
        if not self.ended:
            self.abandoned = True
            self._pauses.give_up("this call can no longer be answered")
            self._stop()
        if self._stopping is not None:
            # Shielded: a caller that is cancelled must not stop the interruption, which others may wait for too.
            await asyncio.shield(self._stopping)

    @property
    def calls(self) -> list[PendingToolCall]:
        """The calls that wait right now, in the order in which they were made."""
        return self._pauses.calls

    @property
    def answered(self) -> Mapping[str, bytes]:
        """A digest of each result, by the id of its call."""
        return self._pauses.answered

    @property
    def hidden_chars(self) -> int:
        """The number of characters in tool results that only the code has read."""
        return self._pauses.answered_chars

    @property
    def waiting(self) -> bool:
        """Whether the client knows of calls that the code waits for."""
        return self._pauses.told

    @property
    def ended(self) -> bool:
        return self._pauses.ended

    def knows(self, tool_use_ids: Collection[str]) -> bool:
        """Whether this code made all of these calls."""
        return bool(tool_use_ids) and self._pauses.known.issuperset(tool_use_ids)

    # For the container.

    async def reached(self) -> None:
        """Wait until it has ended or waits for its client, without marking the outcome as read."""
        await self._pauses.next(None)

    def begin(self, carried_out: Coroutine[None, None, Finished], interrupt: Callable[[], Awaitable[bool]]) -> None:
        """Start the task that carries out the call."""
        self._interrupt = interrupt
        self._task = asyncio.create_task(self._carry_out(carried_out), name=f"run {self.request.tool_use_id}")

    def finish(self, finished: Finished) -> None:
        """End the run with this outcome."""
        self.time.stop()
        self._pauses.finish(finished)

    def fail(self, error_code: ErrorCode, message: str) -> Finished:
        """An outcome without a result."""
        request = self.request
        content = execution_error(request.name, error_code, message)
        block = tool_result(request.name, request.tool_use_id, content)
        return Finished(block, f"error: {error_code}: {message}", self.hidden_chars)

    async def called(self, name: str, arguments: Mapping[str, object]) -> str:
        """Handle a tool call of the code: wait for the client's result. The code gets what this raises."""
        if self.ended or self.abandoned or all(tool.name != name for tool in self.tools):
            raise ToolError(f"the tool {name!r} cannot be called from here")
        return await self._pauses.call(name, arguments)

    async def _carry_out(self, carried_out: Coroutine[None, None, Finished]) -> None:
        try:
            finished = await carried_out
        except Exception:
            _log.exception("a call of %s could not be carried out", self.request.name)
            finished = self.fail("unavailable", "the gateway failed to carry this out")
        except BaseException:
            self.finish(self.fail("unavailable", "the gateway was ended"))
            raise
        self.finish(finished)

    def _time_is_up(self) -> None:
        self.timed_out = True
        self._stop()

    def _stop(self) -> None:
        if self._stopping is None and self._task is not None:
            self._stopping = asyncio.create_task(self._interrupt_until_ended(self._task))

    async def _interrupt_until_ended(self, task: asyncio.Task[None]) -> None:
        """Interrupt the cell, again if it had not begun yet, and wait for its end."""
        try:
            # Again until it takes effect: the task may not have sent its cell to the engine yet.
            while not task.done() and self._interrupt is not None and not await self._interrupt():
                await asyncio.wait({task}, timeout=_INTERRUPT_AGAIN_SECONDS)
        except RametError:
            pass  # the sandbox is gone, and the task gets an error
        _, unfinished = await asyncio.wait({task}, timeout=_GIVE_UP_SECONDS)
        if unfinished:
            task.cancel()
            await asyncio.wait({task})
