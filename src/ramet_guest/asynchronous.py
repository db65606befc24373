"""Top-level await: one event loop for all cells, run while a cell awaits and, between cells, while tasks are pending.

Cells that need no loop run plainly, so `asyncio.run` works in them. asyncio is imported on first use (it costs a
template a megabyte that most sandboxes never touch).
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any

from ramet_guest.channel import Channel
from ramet_guest.interrupts import Gate, Interrupted

if TYPE_CHECKING:
    import asyncio


class Loops:
    """Owns the cells' event loop and the task of the cell that is awaiting."""

    def __init__(self, gate: Gate) -> None:
        self.loop: Any = None
        self._gate = gate
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        # asyncio.run inside an awaiting cell: the innermost loop is not ours then.
        self._nested = 0
        self._wrapped = False
        gate.cancel_awaiting = self._cancel_awaiting

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a cell's coroutine to its end. Called through the gate."""
        if "asyncio" not in sys.modules:
            self._import()
        import asyncio

        outer = asyncio._get_running_loop()
        if outer is not None:
            # A cell within an awaiting cell (`%%time await ...`).
            self._run_nested(lambda: asyncio.run(coroutine))
            return
        loop = self.open()
        task = loop.create_task(self._unless_over(coroutine))
        self._task, self._cancelled = task, False
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError as error:
            if not self._cancelled:
                raise
            # Where the cell was awaiting is what the user wants to see.
            raise KeyboardInterrupt().with_traceback(error.__traceback__) from None
        finally:
            self._task = None
            if not task.done():
                # A hard interrupt gives the loop up, and the task with it: asyncio would complain of it to the user.
                # Before anything else: a second one may come in the next line.
                task._log_destroy_pending = False
                task.cancel()
            elif not task.cancelled():
                task.exception()  # Retrieved: asyncio would report it a second time.

    def _import(self) -> None:
        """An interrupt in the middle of this would leave asyncio half imported, and not to be imported again."""
        self._gate.held = True
        try:
            import asyncio  # noqa: F401
        finally:
            self._gate.held = False
        self._gate.raise_pending()

    async def _unless_over(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """An interrupt that hit another task reaches the one that awaits it later, when the cell is over already."""
        import asyncio

        try:
            await coroutine
        except (KeyboardInterrupt, Interrupted):
            if self._task is asyncio.current_task():
                raise

    def open(self) -> Any:
        """The loop of the cells, which is also the current one of the main thread from now on."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            # Not the policy's choice: idle() below looks into a selector loop.
            self.loop = asyncio.SelectorEventLoop()
            self._wrap_run()
        asyncio.set_event_loop(self.loop)
        return self.loop

    def discard(self) -> None:
        """Gives the loop up: it was torn apart by a hard interrupt, or another one of the user's was."""
        asyncio = sys.modules.get("asyncio")
        if asyncio is None:
            return
        if asyncio._get_running_loop() is not None:
            asyncio._set_running_loop(None)
            # As after a loop that ended well. It would be kept otherwise, with all its tasks and connections.
            asyncio.set_event_loop(None)
            sys.set_asyncgen_hooks(None, None)
        self.loop = None

    def _wrap_run(self) -> None:
        """Lets `asyncio.run` and `Runner.run` work in cells that await, where a loop is running already."""
        if self._wrapped:
            return
        self._wrapped = True
        import asyncio
        import asyncio.runners

        asyncio.run = asyncio.runners.run = self._nestable(asyncio.run)
        asyncio.Runner.run = self._nestable(asyncio.Runner.run)  # type: ignore[method-assign]

    def _nestable(self, function: Callable[..., Any]) -> Callable[..., Any]:
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
        # _enter_task refuses a second current task only of the same loop, so hiding the loop is enough.
        asyncio._set_running_loop(None)
        self._nested += 1
        try:
            return function()
        finally:
            self._nested -= 1
            asyncio._set_running_loop(outer)

    def _cancel_awaiting(self, frame: FrameType) -> bool:
        """Cancels the awaiting cell if the loop is asleep; a second interrupt is raised out of the loop instead."""
        task = self._task
        if task is None or self._nested or self._cancelled or task.done() or not is_asleep(frame):
            return False
        self._cancelled = True
        self.loop.call_soon_threadsafe(task.cancel)
        return True

    def has_tasks(self) -> bool:
        return self.loop is not None and not self.loop.is_closed() and has_tasks(self.loop)

    def idle(self, channel: Channel, before_step: Callable[[], None]) -> None:
        """Runs background work until a frame is there; returns at once if there is no work."""
        loop = self.loop
        if loop is None or loop.is_closed() or not has_work(loop):
            return
        # The control socket never enters the loop's own selector, which belongs to the user.
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        poll.register(loop._selector.fileno(), select.POLLIN)
        # Frames that came together were read together: the second one is in the channel, and no poll tells of it.
        while not channel.holds_data() and not loop.is_closed() and has_work(loop):
            if channel.fileno() in (descriptor for descriptor, _ in poll.poll(milliseconds_to_wait(loop))):
                return
            before_step()
            self._gate.run(step, loop)
            if loop is not self.loop:
                return


def step(loop: Any) -> None:
    """Runs what is ready, once."""
    loop.call_soon(loop.stop)
    loop.run_forever()


def has_work(loop: Any) -> bool:
    """Callbacks, timers, or descriptors besides the loop's own wake-up pipe (a server, a connection)."""
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
