"""Top-level await: one event loop for all cells, which runs while a cell awaits and, if tasks are left, between cells.

Cells that need no loop run without one, so `asyncio.run` works in them. asyncio is imported on first use: it costs a
template a megabyte that most sandboxes never touch.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any

from ramet_guest.cells.interrupts import Interrupted, UserCodeGate
from ramet_guest.channel import ControlChannel

if TYPE_CHECKING:
    import asyncio


class CellLoops:
    """Owns the event loop of the cells and the task of the cell that is awaiting."""

    def __init__(self, gate: UserCodeGate) -> None:
        self.loop: Any = None
        self._gate = gate
        self._task: asyncio.Task[None] | None = None
        # True once an interrupt cancelled the awaiting cell. It tells our cancellation from one by user code, and makes
        # the second interrupt raise instead of cancel again.
        self._cancelled = False
        # How many `asyncio.run` calls are active inside an awaiting cell. The innermost loop is then not ours.
        self._nested = 0
        self._wrapped = False
        self._turn: object = None  # of `_step`, while it lasts
        gate.cancel_awaiting = self._cancel_awaiting

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a cell's coroutine to its end. The caller is inside the gate."""
        if "asyncio" not in sys.modules:
            self._import()
        import asyncio

        outer = asyncio._get_running_loop()
        if outer is not None:
            # A cell within an awaiting cell, such as `%%time await ...`.
            self._run_nested(lambda: asyncio.run(coroutine))
            return
        # Interrupts are deferred: one between these lines would leave a task that nobody ends.
        self._gate.held = True
        try:
            loop = self.open()
            task = loop.create_task(self._unless_over(coroutine))
            # Not `run_until_complete`: an interrupt right before or behind its own `try` leaves its callback on the
            # task, which would stop the loop under the next cell.
            task.add_done_callback(self._stop)
            self._turn = None  # an interrupt may have come before `_step` could say so
            # Both set before the loop runs: `_cancel_awaiting` reads them from the signal handler.
            self._task, self._cancelled = task, False
        finally:
            self._gate.held = False
        try:
            self._gate.raise_pending()
            loop.run_forever()
            if not task.done():  # user code has stopped the loop
                raise RuntimeError("Event loop stopped before Future completed.")
            task.result()
        except asyncio.CancelledError as error:
            if not self._cancelled:
                raise
            # Keep the traceback of the cancellation: it shows where the cell was awaiting.
            raise KeyboardInterrupt().with_traceback(error.__traceback__) from None
        finally:
            # First of all: from here on an interrupt raises instead of cancelling a task that is over.
            self._task = None
            if not task.done():
                # A hard interrupt abandons the loop and this task; asyncio would warn the user about a pending task.
                # Clear the flag before anything else, because another hard interrupt may arrive at the next line.
                task._log_destroy_pending = False
                task.cancel()
            elif not task.cancelled():
                task.exception()  # marks it as retrieved; asyncio would report it a second time

    def _stop(self, task: asyncio.Task[None]) -> None:
        """Ends `run`. An interrupt may abandon a cell when this is on its way: then it stops no other one."""
        if task is self._task:
            task.get_loop().stop()

    def _import(self) -> None:
        """Imports asyncio with interrupts deferred: one in the middle would leave it half imported for ever."""
        self._gate.held = True
        try:
            import asyncio  # noqa: F401
        finally:
            self._gate.held = False
        self._gate.raise_pending()

    async def _unless_over(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Drops an interrupt that reaches this task after its cell has ended.

        An interrupt may hit another task, and asyncio passes it on to the task that awaits that one, perhaps only then.
        """
        import asyncio

        try:
            await coroutine
        except (KeyboardInterrupt, Interrupted):
            if self._task is asyncio.current_task():
                raise

    def open(self) -> Any:
        """Returns the loop of the cells, and makes it the current loop of the main thread."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            # The policy could choose another kind, but idle() reads the selector of a selector loop.
            self.loop = asyncio.SelectorEventLoop()
            self._wrap_run()
        asyncio.set_event_loop(self.loop)
        return self.loop

    def discard(self) -> None:
        """Abandons the loop, because a hard interrupt cut through it or through another loop of the user's."""
        asyncio = sys.modules.get("asyncio")
        if asyncio is None:
            return
        if asyncio._get_running_loop() is not None:
            asyncio._set_running_loop(None)
            # Reset what a loop resets when it ends normally. asyncio would otherwise keep it, with all its tasks and
            # connections.
            asyncio.set_event_loop(None)
            sys.set_asyncgen_hooks(None, None)
        self.loop = None

    def _wrap_run(self) -> None:
        """Lets `asyncio.run` and `Runner.run` work in cells that await, where a loop is already running."""
        if self._wrapped:
            return
        self._wrapped = True
        import asyncio
        import asyncio.runners

        asyncio.run = asyncio.runners.run = self._nestable(asyncio.run)
        asyncio.Runner.run = self._nestable(asyncio.Runner.run)  # type: ignore[method-assign]

    def _nestable(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function that runs a loop, so that it also works while the cells' own loop is running."""
        import asyncio
        import functools

        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> Any:
            running = asyncio._get_running_loop()
            if running is None or running is not self.loop:
                return function(*arguments, **options)
            return self._run_nested(lambda: function(*arguments, **options))

        return run

    def _run_nested(self, function: Callable[[], Any]) -> Any:
        import asyncio

        outer = asyncio._get_running_loop()
        # `_enter_task` refuses a second current task only for the same loop, so hiding the loop is enough.
        asyncio._set_running_loop(None)
        self._nested += 1
        try:
            return function()
        finally:
            self._nested -= 1
            asyncio._set_running_loop(outer)

    def _cancel_awaiting(self, frame: FrameType) -> bool:
        """Cancels the awaiting cell if its loop sleeps in the selector. Returns False for a second interrupt.

        Runs in the signal handler, which raises if this returns False. An exception raised out of a sleeping loop would
        end the loop, and leave the cell's code where it was.
        """
        task = self._task
        if task is None or self._nested or self._cancelled or task.done() or not is_asleep(frame):
            return False
        self._cancelled = True
        # The thread-safe form also wakes the selector; plain `call_soon` would leave it asleep.
        self.loop.call_soon_threadsafe(task.cancel)
        return True

    def has_tasks(self) -> bool:
        return self.loop is not None and not self.loop.is_closed() and has_tasks(self.loop)

    def idle(self, channel: ControlChannel, before_step: Callable[[], None]) -> None:
        """Runs background work until a frame arrives; returns at once if there is none."""
        loop = self.loop
        if loop is None or loop.is_closed() or not has_work(loop):
            return
        # The control socket does not enter the loop's own selector, which user code can see and change.
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        poll.register(loop._selector.fileno(), select.POLLIN)
        # Check the channel too: two frames that arrived together were read together, so the second one is in the
        # channel's buffer and `poll` does not report it.
        while not channel.holds_data() and not loop.is_closed() and has_work(loop):
            if channel.fileno() in (descriptor for descriptor, _ in poll.poll(milliseconds_to_wait(loop))):
                return
            # Checked before each step: the process may have been thawed, or forked by user code, during the last one.
            before_step()
            self._gate.run(self._step, loop)
            # User code in this step closed the loop and opened another.
            if loop is not self.loop:
                return

    def _step(self, loop: Any) -> None:
        """Runs one turn of the loop: everything that is ready now."""
        turn = self._turn = object()

        def end() -> None:
            # An interrupt may have abandoned the turn before the loop came here: then this stops no cell.
            if turn is self._turn:
                loop.stop()

        loop.call_soon(end)
        try:
            loop.run_forever()
        finally:
            self._turn = None


def has_work(loop: Any) -> bool:
    """Whether the loop has callbacks, timers, tasks, or descriptors other than its wake-up pipe (a server's, say)."""
    return bool(loop._ready) or bool(loop._scheduled) or len(loop._selector.get_map()) > 1 or has_tasks(loop)


def has_tasks(loop: Any) -> bool:
    import asyncio

    return bool(asyncio.all_tasks(loop))


def milliseconds_to_wait(loop: Any) -> float | None:
    if loop._ready:
        return 0
    if loop._scheduled:
        # Rounded up: waking a little early would spin.
        seconds: float = loop._scheduled[0]._when - loop.time()
        return max(0.0, seconds * 1000 + 1)
    return None


def is_asleep(frame: FrameType) -> bool:
    """Whether this frame is the loop waiting in its selector."""
    caller = frame.f_back
    return (
        frame.f_code.co_name == "select"
        and frame.f_code.co_filename.endswith("selectors.py")
        and caller is not None
        and caller.f_code.co_name == "_run_once"
    )
