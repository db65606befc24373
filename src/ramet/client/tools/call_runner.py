"""Runs the tools that a cell calls, and sends the answers. Never breaks the cell, whatever a tool does.

    TOOL_CALL  ->  arguments checked  ->  handler, in a thread or as a task  ->  value encoded  ->  TOOL_ANSWER

An answer is a call of its own over another connection. A short answer of an embedded cell goes over the connection that
runs the cell, without a reply (``call_reader``). When the cell ends, coroutines that still run are cancelled; functions
in threads cannot be, and their values are dropped. The engine forgets the calls by itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any

from ramet.client.drivers import asynchronous, blocking
from ramet.client.handle import SandboxHandle
from ramet.client.operations.steps import ToolCalled, ToolCancelled
from ramet.client.operations.tool_calls import ToolAnswer, ToolFailure, answer_tool, one_way_answer
from ramet.client.tools.answers import encoded, failure, is_small
from ramet.client.tools.call_reader import FrameSender
from ramet.client.tools.current_call import mark_tool_call
from ramet.client.tools.tool import Tool
from ramet.client.tools.workers import loop_thread, workers
from ramet.errors import LimitReached, OutcomeUnknown, RametError, Unreachable

# An answer that may have been lost is sent again: the engine takes only the first answer to a call. After the last
# pause the answer is dropped, and the code inside runs into its timeout.
_PAUSES_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
_FAST_SECONDS = 0.002  # a tool that took less may run in the thread that reads
_MAYBE_LOST = (OutcomeUnknown, Unreachable, LimitReached)


class ToolCallRunner:
    """The tool calls of one cell that run now. Used by the thread, or on the loop, that runs the cell.

    ``in_callers_thread``: tools may run in the thread that waits for the cell.
    """

    def __init__(self, handle: SandboxHandle, on_loop: bool, in_callers_thread: bool = False) -> None:
        self.handle = handle
        self._on_loop = on_loop
        self.loop: asyncio.AbstractEventLoop | None = None  # the caller's own, if it has one
        # The tools of this moment. If the handle gets others before the cell begins, those are found in the handle.
        self._tools = handle.tools
        self._context = copy_context()
        # A thread with a running loop must not run tools: asyncio.run in a tool would fail there.
        self.in_callers_thread = in_callers_thread and asyncio._get_running_loop() is None
        self._running: dict[str, RunningToolCall] = {}

    def take(self, step: ToolCalled | ToolCancelled) -> None:
        """Start to answer a call, or give one up. Returns at once."""
        if isinstance(step, ToolCalled):
            call = self.accept(step)
            if call is not None:
                workers.submit(call.run, self.handle.id)
        elif (cancelled := self._running.pop(step.call_id, None)) is not None:
            cancelled.cancel()

    def accept(self, step: ToolCalled) -> RunningToolCall | None:
        """Return a call that the caller must run in a thread. None if it runs on a loop already."""
        if self._on_loop and self.loop is None:
            self.loop = asyncio.get_running_loop()
        tool = self._tools.find(step.tool) or self.handle.tools.find(step.tool)
        call = self._running[step.call_id] = RunningToolCall(self, step, tool, self._context.copy())
        if tool is None or not tool.is_async:
            return call
        if self.loop is not None:
            call.begin(self.loop)
        else:
            loop = loop_thread.loop
            loop.call_soon_threadsafe(call.begin, loop)
        return None

    def end(self) -> None:
        """Cancel the calls that still run: the cell has ended, or its caller gave it up."""
        for call_id in tuple(self._running):
            call = self._running.pop(call_id, None)  # None: a thread has finished it and removed it meanwhile
            if call is not None:
                call.cancel()

    def finished(self, call_id: str) -> None:
        self._running.pop(call_id, None)


class RunningToolCall:
    """One call, until it is answered or cancelled. Runs in a thread (``run``) or on a loop (``begin``)."""

    __slots__ = ("_cancelled", "_context", "_runner", "_step", "_task", "_tool")

    def __init__(self, runner: ToolCallRunner, step: ToolCalled, tool: Tool | None, context: Context) -> None:
        self._runner = runner
        self._step = step
        self._tool = tool
        self._context = context
        self._cancelled = False
        self._task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Cancel it, from the thread that runs the cell. A function in a thread goes on; its value is dropped."""
        self._cancelled = True
        task = self._task
        if task is not None:
            loop = task.get_loop()
            if loop is self._runner.loop:
                task.cancel()
            else:
                loop.call_soon_threadsafe(task.cancel)

    # In a thread

    @property
    def sandbox_id(self) -> str:
        return self._runner.handle.id

    @property
    def may_run_in_reader(self) -> bool:
        tool = self._tool
        return (
            tool is not None and tool.was_fast and tool.spec.timeout_seconds is None and self._runner.in_callers_thread
        )

    def run(self, sender: FrameSender | None = None) -> None:
        """Run the tool and send the answer, over ``sender`` if there is one and the answer is short.

        Raises nothing but KeyboardInterrupt, and that only in the main thread: Ctrl-C is for the caller of the cell.
        """
        if self._cancelled:
            return
        began = time.perf_counter()
        answer = self._context.run(self._answer)
        if self._tool is not None:
            self._tool.was_fast = time.perf_counter() - began < _FAST_SECONDS
        if sender is None or not self._send_one_way(answer, sender):
            self._send(answer)
        self._runner.finished(self._step.call_id)

    def _answer(self) -> ToolAnswer:
        tool, step = self._tool, self._step
        if tool is None:
            return _no_handler(step)
        self._mark(threading.get_ident())
        try:
            value = tool.bind(step.arguments)()
            if isinstance(value, Coroutine):
                loop = self._runner.loop or loop_thread.loop
                value = asyncio.run_coroutine_threadsafe(value, loop).result()
            return encoded(value, step.accepts)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            return failure(error, step.tool)

    def _send_one_way(self, answer: ToolAnswer, sender: FrameSender) -> bool:
        """Send a short answer without waiting for a reply. Returns False if it is too long for that."""
        frame = one_way_answer(self._runner.handle.id, self._step.call_id, answer)
        if frame is None:
            return False
        try:
            if not self._cancelled:
                sender.send(frame)
        except RametError:
            pass  # the thread that reads this connection gets the error, too
        return True

    def _send(self, answer: ToolAnswer) -> None:
        handle = self._runner.handle
        for pause_seconds in (0.0, *_PAUSES_SECONDS):
            if pause_seconds:
                time.sleep(pause_seconds)
            if self._cancelled:
                return
            try:
                blocking.perform(handle.engine, answer_tool(handle.id, self._step.call_id, answer))
                return
            except _MAYBE_LOST:
                continue
            except RametError:
                return  # the sandbox is gone, and with it the code that waited for the answer

    # On a loop

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._cancelled:
            self._task = loop.create_task(self._run_on_loop(), context=self._context)

    async def _run_on_loop(self) -> None:
        if self._cancelled:
            return  # ``cancel`` came before there was a task to cancel
        try:
            answer = await self._answer_on_loop()
            await self._send_on_loop(answer)
        except asyncio.CancelledError:
            pass  # the code inside no longer waits for the answer
        self._runner.finished(self._step.call_id)

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
            if self._cancelled or (self._task is not None and self._task.cancelling()):
                raise asyncio.CancelledError from None
            return failure(error, step.tool)

    async def _send_on_loop(self, answer: ToolAnswer) -> None:
        handle = self._runner.handle
        for pause_seconds in (0.0, *_PAUSES_SECONDS):
            if pause_seconds:
                await asyncio.sleep(pause_seconds)
            try:
                await asynchronous.perform(handle.engine, answer_tool(handle.id, self._step.call_id, answer))
                return
            except _MAYBE_LOST:
                continue
            except RametError:
                return

    def _mark(self, runner: object) -> None:
        step = self._step
        mark_tool_call(self._runner.handle.id, step.tool, step.call_id, runner)


def _no_handler(step: ToolCalled) -> ToolFailure:
    return ToolFailure("unknown", f"the program that runs this cell has no tool {step.tool!r:.80}")
