"""The pauses of a cell: calls that wait for the client, what the client was sent, and what followed its results.

    step 0: Waiting(a, b) --both answered--> step 1: Waiting(c) --answered--> step 2: Finished

A step is what one ``next`` returns, and it returns it again when asked again. It ends when none of its calls waits any
more: they are answered, timed out, or abandoned by the code. Calls made meanwhile belong to the next step.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ramet.doors.gateway.encoding import to_json
from ramet.doors.gateway.running.answers import AnswerRefused, ClientToolAnswer, Content
from ramet.doors.gateway.running.clock import RunningTime
from ramet.doors.gateway.running.outcomes import CallLimits, Finished, PendingToolCall, Waiting
from ramet.errors import ToolError

# Only the last outcomes are asked for again, by repeated requests and by slow ones.
_STEPS_KEPT = 16
# The size of the arguments of all waiting calls of a cell. They stay in memory, and the client sends them back with its
# history, for which a request has 32 MiB.
_ARGUMENT_BYTES = 4 << 20


@dataclass(slots=True)
class _Step:
    outcome: asyncio.Future[Waiting | Finished]
    ids: frozenset[str] = frozenset()  # the calls in it


@dataclass(slots=True)
class _PausedCall:
    call: PendingToolCall
    answer: asyncio.Future[ClientToolAnswer]
    size_bytes: int


class Pauses:
    """Owns the waiting calls of one cell, and its steps. While any call waits, the cell's clock is paused."""

    def __init__(self, limits: CallLimits, time: RunningTime, gather_seconds: float) -> None:
        """``gather_seconds``: calls that follow each other within this time are sent together."""
        self.answered: dict[str, bytes] = {}  # digests of results, by tool_use id
        self.answered_chars = 0  # of results that are not errors
        self.known: set[str] = set()  # ids of all calls that were made
        self._limits = limits
        self._gather_seconds = gather_seconds
        self._time = time
        self._pending: dict[str, _PausedCall] = {}
        self._steps: deque[_Step] = deque(maxlen=_STEPS_KEPT)
        self._gathering: asyncio.TimerHandle | None = None
        self._gather_until = 0.0
        self._begin_step()

    @property
    def calls(self) -> list[PendingToolCall]:
        """The calls that wait right now, in the order in which they were made."""
        return [waiting.call for waiting in self._pending.values()]

    @property
    def told(self) -> bool:
        """Whether the client was sent calls that are not all answered."""
        return self._steps[-1].outcome.done() and not self.ended

    @property
    def ended(self) -> bool:
        last = self._steps[-1].outcome
        return last.done() and isinstance(last.result(), Finished)

    async def next(self, after: Collection[str] | None) -> Waiting | Finished:
        """The outcome of the last step, or of the step that followed the results of these calls."""
        step = self._steps[-1] if after is None else self._step_after(frozenset(after))
        # Shielded: several requests may wait for one step, and one that is cancelled must not cancel it for the others.
        return await asyncio.shield(step.outcome)

    async def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """Wait for the client's result of a call. The code gets what this raises: ToolError or TimeoutError."""
        size_bytes = len(to_json(arguments))
        if size_bytes + sum(one.size_bytes for one in self._pending.values()) > _ARGUMENT_BYTES:
            raise ToolError(f"the arguments of the waiting calls are together longer than {_ARGUMENT_BYTES} bytes")
        call = PendingToolCall(f"toolu_{secrets.token_hex(12)}", name, dict(arguments))
        waiting = _PausedCall(call, asyncio.get_running_loop().create_future(), size_bytes)
        self._pending[call.id] = waiting
        self.known.add(call.id)
        self._time.hold()
        self._gather()
        seconds = self._limits.call_seconds
        try:
            async with asyncio.timeout(seconds):
                answer = await waiting.answer
        except TimeoutError:
            # Word for word as published, because programs look for it.
            raise TimeoutError(f"Calling tool [{name!r}] timed out (no response after {seconds:g}s).") from None
        finally:
            self._settle(call.id)
        if answer.is_error:
            raise ToolError(answer.text)
        return answer.text

    def answer(self, tool_use_id: str, content: Content, is_error: bool) -> None:
        """Give a call its result. Ignores a repeated result, and one that comes too late. Raises AnswerRefused."""
        if tool_use_id not in self.known:
            raise AnswerRefused(f"no code is waiting for a result of {tool_use_id}")
        answer = ClientToolAnswer.read(content, is_error)
        if tool_use_id in self.answered:
            if self.answered[tool_use_id] != answer.digest:
                raise AnswerRefused(
                    f"{tool_use_id} was already answered with another result, and the code continued with that one"
                )
            return
        self.answered[tool_use_id] = answer.digest
        waiting = self._pending.get(tool_use_id)
        if waiting is not None:
            if not is_error:
                self.answered_chars += len(answer.text)
            waiting.answer.set_result(answer)
            # At once, not when `call` resumes: the same request may ask for the step after this one right away.
            self._settle(tool_use_id)

    def give_up(self, why: str) -> None:
        """Fail all waiting calls in the code."""
        for waiting in list(self._pending.values()):
            if not waiting.answer.done():
                waiting.answer.set_exception(ToolError(why))
            self._settle(waiting.call.id)

    def finish(self, finished: Finished) -> None:
        """End the last step with this outcome."""
        if self.ended:
            return
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self.give_up("the cell that made this call has ended")
        if self._steps[-1].outcome.done():
            self._begin_step()
        self._steps[-1].outcome.set_result(finished)

    def _begin_step(self) -> None:
        self._steps.append(_Step(asyncio.get_running_loop().create_future()))

    def _step_after(self, ids: frozenset[str]) -> _Step:
        """The step after these calls. The last step, if they are not all answered, or were answered long ago."""
        for at in range(len(self._steps) - 2, -1, -1):
            if self._steps[at].ids and self._steps[at].ids <= ids:
                return self._steps[at + 1]
        return self._steps[-1]

    def _settle(self, call_id: str) -> None:
        """Remove a waiting call, and begin a new step if it was the last one of its step."""
        if self._pending.pop(call_id, None) is None:
            return
        if not self._pending and not self.ended:
            self._time.go()
        step = self._steps[-1]
        if step.ids and step.ids.isdisjoint(self._pending):
            self._begin_step()
            if self._pending:
                self._gather()

    def _gather(self) -> None:
        """Schedule sending the waiting calls, once no others follow closely."""
        if self._steps[-1].outcome.done():
            return  # the client works on the current step; it gets these calls with the next one
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._gathering is None:
            self._gather_until = now + self._limits.gather_at_most_seconds
        else:
            self._gathering.cancel()
        self._gathering = loop.call_at(min(now + self._gather_seconds, self._gather_until), self._tell)

    def _tell(self) -> None:
        self._gathering = None
        step = self._steps[-1]
        if self._pending and not step.outcome.done():
            step.ids = frozenset(self._pending)
            step.outcome.set_result(Waiting(tuple(self.calls)))
