"""Thawing: one copy of a snapshot into one pod. Every sandbox's process comes to be here."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ramet.errors import ForkFailed
from ramet.freezing import _core
from ramet.freezing.ancestry import Ancestry
from ramet.freezing.body import Life
from ramet.freezing.calls import InjectedCall
from ramet.freezing.frozen import Frozen, Recipes
from ramet.freezing.process_ends import end_process
from ramet.freezing.resource_limits import resource_limits
from ramet.isolation.kernel import cgroups
from ramet.isolation.pods import Pod
from ramet.isolation.thread_work import finish

_THAW_SECONDS = 10.0
_FIRST_PID, _LAST_PID = 1000, 30_000


class Thawed(NamedTuple):
    """The processes of a copy, in the engine's numbering; their pidfds belong to the caller."""

    shadow: int
    shadow_pidfd: int
    repl: int
    repl_pidfd: int
    microseconds: tuple[float, float, float, float]  # of the four parts of a thaw


class Plan(NamedTuple):
    """One thaw, ready to be carried out."""

    pod: Pod
    pid: int
    calls: tuple[InjectedCall, ...]
    powerless_calls: tuple[InjectedCall, ...]  # when its capabilities are dropped
    children: tuple[tuple[int, int], ...]
    groups: int
    consume: bool  # the copy takes the shadow of the snapshot itself, which has none afterwards
    more: bool  # another copy follows: the kernel begins with its memory while this one is set up
    kills_before: int
    greeting: bytes

    def carry_out(self, snapshot: _core.Snapshot) -> Thawed:
        """Runs in the tracer's thread."""
        if self.greeting:
            self.pod.ends.control.send(self.greeting)
        return Thawed(
            *_core.thaw(
                snapshot, self.pod.handle.init_pid, self.pod.root, self.pod.namespaces, self.pid, self.groups,
                self.calls, self.powerless_calls, self.children, self.consume, self.more, _THAW_SECONDS,
            )
        )  # fmt: skip


class Thawer:
    """Puts copies of snapshots into pods, for one machine. Pods stay their owners'."""

    def __init__(
        self, tracer: ThreadPoolExecutor, delegation: cgroups.Delegation, surroundings: cgroups.Surroundings
    ) -> None:
        self._tracer = tracer
        self._delegation = delegation
        self._surroundings = surroundings
        self._pids = itertools.cycle(range(_FIRST_PID, _LAST_PID))
        self.last_microseconds: tuple[float, ...] = ()

    async def thaw_into(self, frozen: Frozen, pod: Pod, consume: bool = False, more: bool = False) -> Life:
        """A copy of a snapshot in an empty pod.

        Raises LimitReached where the host has no room now, HostNotCapable where its kernel refuses a step, and
        otherwise the error of this kind of snapshot.
        """
        plan = self.plan(frozen.recipes, pod, frozen.lineage, frozen.kept_pid, consume, more)
        return await self.carry_out(frozen, plan)

    def plan(
        self, recipes: Recipes, pod: Pod, lineage: frozenset[int], kept_pid: int | None, consume: bool, more: bool
    ) -> Plan:
        taken = recipes.taken_pids | lineage
        pid = kept_pid or next(number for number in self._pids if number not in taken)
        usual = resource_limits(pod.limits, self._delegation)
        return Plan(
            pod=pod,
            pid=pid,
            calls=recipes.calls(pid, pod.limits, usual),
            powerless_calls=recipes.powerless_calls(pid, usual),
            children=recipes.children,
            groups=len(self._delegation.paths()),
            consume=consume,
            more=more,
            kills_before=self._kills(pod),
            greeting=recipes.greeting,
        )

    async def carry_out(self, frozen: Frozen, plan: Plan) -> Life:
        if frozen.closed:
            raise ForkFailed("the snapshot was closed")
        work = asyncio.get_running_loop().run_in_executor(self._tracer, plan.carry_out, frozen.snapshot)
        try:
            # A caller that is cancelled waits for the thread all the same: processes that it makes would have no owner.
            thawed = await finish(work, end_thawed)
        except _core.FreezeError as error:
            raise frozen.recipes.failure(error) from error
        return self.life(frozen, plan, thawed)

    def life(self, frozen: Frozen, plan: Plan, thawed: Thawed) -> Life:
        """The processes of a copy, now the caller's. The init of their pod drops its copies of their lines."""
        self.last_microseconds = thawed.microseconds
        plan.pod.let_go()
        return Life(
            shadow=thawed.shadow,
            shadow_pidfd=thawed.shadow_pidfd,
            shadow_end=None,
            repl=thawed.repl,
            repl_pidfd=thawed.repl_pidfd,
            pid=plan.pid,
            syscall_at=_core.syscall_at(frozen.snapshot),
            lineage=frozen.lineage | {plan.pid},
            death=asyncio.get_running_loop().create_future(),
            kills_before=plan.kills_before,
            # One that takes the shadow of the snapshot itself is what that was.
            ancestry=Ancestry(frozen.ancestry.above if plan.consume else frozen.ancestry),
        )

    def _kills(self, pod: Pod) -> int:
        """How often the kernel has killed for want of memory where a REPL in this pod is counted."""
        if "memory" in self._delegation.folders and pod.group is not None:
            return pod.group.out_of_memory_kills()
        return self._surroundings.kills()


def end_thawed(thawed: Thawed) -> None:
    """Kill both processes of a copy whose caller was cancelled, and close their pidfds."""
    end_process(thawed.repl_pidfd)
    end_process(thawed.shadow_pidfd)
