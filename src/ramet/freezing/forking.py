"""The first copies of a fork are thawed in the same go as the freeze.

While the kernel copies the parent's memory for the tracer's thread, the event loop has nothing to do. It gets what was
read, takes the pods that are ready and works out the calls of a copy for each; the tracer goes on with them.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from typing import NamedTuple

from ramet.freezing import live
from ramet.freezing.live import FrozenCopy, SandboxRecipes, Subject
from ramet.freezing.thawing import Plan, Thawed

_PLAN_SECONDS = 0.5  # a busier loop thaws its copies later: the tracer's thread has other sandboxes to serve


class Batch(NamedTuple):
    """A freeze, and what was thawed in one go with it: the first plans in their order, up to one that failed."""

    taken: FrozenCopy
    made: list[Thawed]
    error: Exception | None


class Handover:
    """Between the tracer's thread and the event loop, for one fork."""

    def __init__(self, on_resumed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._plans: queue.SimpleQueue[Plan | None] = queue.SimpleQueue()
        self._on_resumed = on_resumed
        self.read: asyncio.Future[SandboxRecipes] = self._loop.create_future()

    def give(self, plan: Plan | None) -> None:
        """Called on the loop with the next copy to thaw; None after the last that can be thawed at once."""
        self._plans.put(plan)

    def freeze_and_thaw(self, subject: Subject) -> Batch:
        """Runs in the tracer's thread. The error of a failed thaw goes with the snapshot, which exists all the same."""
        taken = live.freeze(subject, self._on_read)
        self._loop.call_soon_threadsafe(self._on_resumed)
        made: list[Thawed] = []
        try:
            while (plan := self._plans.get(timeout=_PLAN_SECONDS)) is not None:
                made.append(plan.carry_out(taken.snapshot))
        except queue.Empty:
            pass
        except Exception as error:
            return Batch(taken, made, error)
        return Batch(taken, made, None)

    def _on_read(self, recipes: SandboxRecipes) -> None:
        self._loop.call_soon_threadsafe(self._set, recipes)

    def _set(self, recipes: SandboxRecipes) -> None:
        if not self.read.done():  # it is cancelled when the freeze has failed by now
            self.read.set_result(recipes)
