"""The first copies of a fork are thawed in the same go as the freeze.

While the kernel copies the parent's memory for the tracer's thread, the event loop has nothing to do. It is told what
was read, takes the pods that are ready and works out the calls of a copy for each; the tracer goes on with them.
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

_PLAN_SECONDS = 0.5  # a loop that is so busy thaws its copies later; others wait for the tracer
Thawed = tuple[int, int, int, int, tuple[float, float, float, float]]


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
    kills_before: int
    greeting: bytes = b""  # a frame that is there before it runs

    def carry_out(self, snapshot: _core.Snapshot) -> Thawed:
        """In the tracer's thread."""
        if self.greeting:
            self.pod.ends.control.send(self.greeting)
        return _core.thaw(
            snapshot, self.pod.handle.init_pid, self.pod.root, self.pod.namespaces, self.pid, self.groups,
            self.calls, self.children, self.consume, self.more, self.seconds,
        )  # fmt: skip


class Batch(NamedTuple):
    """A freeze, and what was thawed in one go with it: the first plans in their order, up to one that failed."""

    taken: Taken
    made: list[Thawed]
    error: Exception | None


class Handover:
    """Between the tracer's thread and the event loop, for one fork."""

    def __init__(self, on_resumed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._plans: queue.SimpleQueue[Plan | None] = queue.SimpleQueue()
        self._on_resumed = on_resumed
        self.read: asyncio.Future[Recipes] = self._loop.create_future()

    def give(self, plan: Plan | None) -> None:
        """From the loop: the next copy to thaw; None after the last that can be thawed at once."""
        self._plans.put(plan)

    def freeze_and_thaw(self, subject: Subject) -> Batch:
        """In the tracer's thread. A thaw that failed is told beside the snapshot, which is there all the same."""
        taken = live.freeze(subject, self._tell)
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

    def _tell(self, recipes: Recipes) -> None:
        self._loop.call_soon_threadsafe(self._set, recipes)

    def _set(self, recipes: Recipes) -> None:
        if not self.read.done():
            self.read.set_result(recipes)
