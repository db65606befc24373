"""The first copy of a fork is thawed in the same go as the freeze.

While the kernel copies the parent's memory for the tracer's thread, the event loop has nothing to do. It is told what
was read, takes a pod and works out the calls of the first copy; the tracer then goes on with them at once.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from typing import NamedTuple

from ramet.freezing import _core, live
from ramet.freezing.calls import Call
from ramet.freezing.live import Recipes, Subject, Taken
from ramet.isolation.pods import Pod

_PLAN_SECONDS = 1.0  # a loop that is so busy thaws the first copy later, like all others


# What came of the first copy: it, why it could not be made, or nothing yet.
FirstThaw = tuple[int, int, int, int, tuple[float, float, float, float]] | _core.FreezeError | None


class Plan(NamedTuple):
    """One thaw, ready to be carried out."""

    pod: Pod
    pid: int
    calls: tuple[Call, ...]
    children: tuple[tuple[int, int], ...]
    groups: int
    consume: bool
    more: bool
    seconds: float

    def carry_out(self, snapshot: _core.Snapshot) -> _core.Thawed:
        """In the tracer's thread."""
        return _core.thaw(
            snapshot, self.pod.handle.init_pid, self.pod.root, self.pid, self.groups, self.calls, self.children,
            self.consume, self.more, self.seconds,
        )  # fmt: skip


class Handover:
    """Between the tracer's thread and the event loop, for one fork."""

    def __init__(self, on_resumed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._plans: queue.SimpleQueue[Plan | None] = queue.SimpleQueue()
        self._on_resumed = on_resumed
        self.read: asyncio.Future[Recipes] = self._loop.create_future()

    def give(self, plan: Plan | None) -> None:
        """From the loop: how to thaw the first copy, or that it has to be thawed later."""
        self._plans.put(plan)

    def freeze_and_thaw(self, subject: Subject) -> tuple[Taken, FirstThaw]:
        """In the tracer's thread. A thaw that failed is told beside the snapshot, which is there all the same."""
        taken = live.freeze(subject, self._tell)
        self._loop.call_soon_threadsafe(self._on_resumed)
        try:
            plan = self._plans.get(timeout=_PLAN_SECONDS)
        except queue.Empty:
            return taken, None
        try:
            return taken, plan.carry_out(taken.snapshot) if plan is not None else None
        except _core.FreezeError as error:
            return taken, error

    def _tell(self, recipes: Recipes) -> None:
        self._loop.call_soon_threadsafe(self._set, recipes)

    def _set(self, recipes: Recipes) -> None:
        if not self.read.done():
            self.read.set_result(recipes)
