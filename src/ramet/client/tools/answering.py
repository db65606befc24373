"""Answers the tool calls of one cell, beside the call that runs it. Never breaks that call, whatever a tool does.

    TOOL_CALL  ->  arguments checked  ->  handler, in a thread or as a task  ->  value encoded  ->  TOOL_ANSWER

An answer is a call of its own, over another connection; a short one of an embedded cell goes over the connection that
runs it, and nothing comes back (``attending``). When the cell is over, what still runs is cancelled if it can
be and forgotten if not; the engine forgets the calls by itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any

from ramet.client import asynchronous, blocking, operations
from ramet.client.handle import Handle
from ramet.client.operations import ToolAnswer, ToolCalled, ToolCancelled, ToolFailure
from ramet.client.tools.answers import encoded, failure, is_small
from ramet.client.tools.attending import Sender
from ramet.client.tools.current_call import mark_tool_call
from ramet.client.tools.tool import Tool
from ramet.client.tools.workers import loop_thread, workers
from ramet.errors import LimitReached, OutcomeUnknown, RametError, Unreachable

# The engine takes one answer to a call and says so of any other: one that may have been lost is sent again. After the
# last pause the code inside is left to its timeout: nothing else can be done about a way that stays cut.
_PAUSES_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
_QUICK_SECONDS = 0.002
_LOST_ON_THE_WAY = (OutcomeUnknown, Unreachable, LimitReached)


class Answering:
    """The calls of one cell that are being answered. Used by the thread, or on the loop, that runs the cell."""

    def __init__(self, handle: Handle, on_loop: bool, patient: bool = False) -> None:
        self.handle = handle
        self._on_loop = on_loop
        self.loop: asyncio.AbstractEventLoop | None = None  # the caller's own, if it has one
        # As they are now. The cell may begin after others have been given, which are then looked for in the handle.
        self._tools = handle.tools
        self._context = copy_context()
        # A tool may run in the thread of a caller who waits for its end, and in which no loop would be in its way.
        self.patient = patient and asyncio._get_running_loop() is None
        self._under_way: dict[str, UnderWay] = {}

    def take(self, step: ToolCalled | ToolCancelled) -> None:
        """A call is answered, or given up; here nobody waits for either."""
        if isinstance(step, ToolCalled):
            call = self.accept(step)
            if call is not None:
                workers.submit(call.run, self.handle.id)
        elif (given_up := self._under_way.pop(step.call_id, None)) is not None:
            given_up.give_up()

    def accept(self, step: ToolCalled) -> UnderWay | None:
        """A call that is to be run in a thread. None: it runs on a loop already."""
        if self._on_loop and self.loop is None:
            self.loop = asyncio.get_running_loop()
        tool = self._tools.find(step.tool) or self.handle.tools.find(step.tool)
        call = self._under_way[step.call_id] = UnderWay(self, step, tool, self._context.copy())
        if tool is None or not tool.is_async:
            return call
        if self.loop is not None:
            call.begin(self.loop)
        else:
            loop = loop_thread.loop
            loop.call_soon_threadsafe(call.begin, loop)
        return None

    def end(self) -> None:
        """The cell is over, or nobody waits for it any more."""
        for call_id in tuple(self._under_way):
            call = self._under_way.pop(call_id, None)  # threads that are done take theirs out at any time
            if call is not None:
                call.give_up()

    def over(self, call_id: str) -> None:
        self._under_way.pop(call_id, None)


class UnderWay:
    """One call, until it is answered or nobody waits for it. In a thread (``run``) or on a loop (``begin``)."""

    __slots__ = ("_answering", "_context", "_given_up", "_step", "_task", "_tool")

    def __init__(self, answering: Answering, step: ToolCalled, tool: Tool | None, context: Context) -> None:
        self._answering = answering
        self._step = step
        self._tool = tool
        self._context = context
        self._given_up = False
        self._task: asyncio.Task[None] | None = None

    def give_up(self) -> None:
        """From the caller's thread. A function that runs in a thread is let run; what it returns goes nowhere."""
        self._given_up = True
        task = self._task
        if task is not None:
            loop = task.get_loop()
            if loop is self._answering.loop:
                task.cancel()
            else:
                loop.call_soon_threadsafe(task.cancel)

    # In a thread

    @property
    def sandbox_id(self) -> str:
        return self._answering.handle.id

    @property
    def quick(self) -> bool:
        tool = self._tool
        return tool is not None and tool.quick and tool.spec.timeout_seconds is None and self._answering.patient

    def run(self, sender: Sender | None = None) -> None:
        """Answer it, over ``sender`` if there is one and the answer is short. Raises nothing.

        In the main thread Ctrl-C is the caller's, not the tool's.
        """
        if self._given_up:
            return
        began = time.perf_counter()
        answer = self._context.run(self._answer)
        if self._tool is not None:
            self._tool.quick = time.perf_counter() - began < _QUICK_SECONDS
        if sender is None or not self._send_quietly(answer, sender):
            self._send(answer)
        self._answering.over(self._step.call_id)

    def _answer(self) -> ToolAnswer:
        tool, step = self._tool, self._step
        if tool is None:
            return _no_handler(step)
        self._mark(threading.get_ident())
        try:
            value = tool.bind(step.arguments)()
            if isinstance(value, Coroutine):
                loop = self._answering.loop or loop_thread.loop
                value = asyncio.run_coroutine_threadsafe(value, loop).result()
            return encoded(value, step.accepts)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            return failure(error, step.tool)

    def _send_quietly(self, answer: ToolAnswer, sender: Sender) -> bool:
        frame = operations.quiet_answer(self._answering.handle.id, self._step.call_id, answer)
        if frame is None:
            return False
        try:
            if not self._given_up:
                sender.send(frame)
        except RametError:
            pass  # whoever reads from there is told of it
        return True

    def _send(self, answer: ToolAnswer) -> None:
        handle = self._answering.handle
        for pause_seconds in (0.0, *_PAUSES_SECONDS):
            if pause_seconds:
                time.sleep(pause_seconds)
            if self._given_up:
                return
            try:
                blocking.perform(handle.engine, operations.answer_tool(handle.id, self._step.call_id, answer))
                return
            except _LOST_ON_THE_WAY:
                continue
            except RametError:
                return  # the sandbox is gone, and whoever waited in it, too

    # On a loop

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._given_up:
            self._task = loop.create_task(self._run_on_loop(), context=self._context)

    async def _run_on_loop(self) -> None:
        if self._given_up:
            return  # before there was a task that could have been cancelled
        try:
            answer = await self._answer_on_loop()
            await self._send_on_loop(answer)
        except asyncio.CancelledError:
            pass  # nobody waits any more
        self._answering.over(self._step.call_id)

    async def _answer_on_loop(self) -> ToolAnswer:
        tool, step = self._tool, self._step
        assert tool is not None
        self._mark(asyncio.current_task())
        try:
            value: Any = await tool.bind(step.arguments)()  # type: ignore[misc]
            if is_small(value):
                return encoded(value, step.accepts)
            return await asyncio.to_thread(encoded, value, step.accepts)
        except BaseException as error:
            if self._given_up or (self._task is not None and self._task.cancelling()):
                raise asyncio.CancelledError from None
            return failure(error, step.tool)

    async def _send_on_loop(self, answer: ToolAnswer) -> None:
        handle = self._answering.handle
        for pause_seconds in (0.0, *_PAUSES_SECONDS):
            if pause_seconds:
                await asyncio.sleep(pause_seconds)
            try:
                await asynchronous.perform(handle.engine, operations.answer_tool(handle.id, self._step.call_id, answer))
                return
            except _LOST_ON_THE_WAY:
                continue
            except RametError:
                return

    def _mark(self, runner: object) -> None:
        step = self._step
        mark_tool_call(self._answering.handle.id, step.tool, step.call_id, runner)


def _no_handler(step: ToolCalled) -> ToolFailure:
    return ToolFailure("unknown", f"the program that runs this cell has no tool {step.tool!r:.80}")
