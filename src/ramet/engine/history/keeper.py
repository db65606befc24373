"""The history of all sandboxes of one engine: takes points one at a time, and keeps within one budget of memory."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import perf_counter

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.history.bring_back import back_to_last
from ramet.engine.history.disk import PastOnDisk
from ramet.engine.history.flattener import Flattener
from ramet.engine.history.memory import machine_memory_bytes, own_memory
from ramet.engine.history.past import KILLED, Recovered, State, Step
from ramet.engine.history.point_taker import PointTaker
from ramet.engine.making.carried_state import RetiredBody
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.workshop import Workshop
from ramet.engine.settings import Settings
from ramet.errors import ForkFailed, RametError

_MEMORY_SHARE = 0.05
_REST = 9  # times as long as a point took, until the next: all of them take a tenth of one processor at most
_MEASURED_AGAIN = 10  # measurements, of which one is of all states of a sandbox: what one drops, its neighbour holds
_MEASURE_SECONDS = 0.2
_KERNEL_BYTES = 2**20  # of a frozen process besides its page tables: a guess from the growth of many
GIVEN_UP = "its memory was needed for sandboxes that were used more recently"

Background = Callable[[Coroutine[object, object, None]], None]


class HistoryKeeper:
    """Owns the point takers of one engine. Sandboxes own their states."""

    def __init__(self, workshop: Workshop, settings: Settings, background: Background) -> None:
        self.settings = settings
        self.lock = asyncio.Lock()
        self.retire: Callable[[RetiredBody], None] = lambda retired: background(retired.close())
        self._workshop = workshop
        self._background = background
        self._takers: dict[Sandbox, PointTaker] = {}
        self._asking: deque[PointTaker] = deque()
        self._working = False  # set before the task is made: two would freeze in turns, and rest half as long
        self._unmeasured: dict[PointTaker, None] = {}  # with states that were kept since they were measured
        self._measuring = False
        self.disk = PastOnDisk(workshop, settings, background, self._takers.values)
        self._bytes_at_most = settings.history_bytes
        if self._bytes_at_most is None:
            self._bytes_at_most = int(machine_memory_bytes() * _MEMORY_SHARE)
        self._flattener = Flattener(
            workshop, settings, background, lambda retired: self.retire(retired), self._has_children
        )

    def __repr__(self) -> str:
        return f"<HistoryKeeper of {len(self._takers)} sandboxes>"

    def watch(self, sandbox: Sandbox) -> None:
        """Keep its states from now on."""
        sandbox.past.release = self.release
        taker = sandbox.points = self._takers[sandbox] = PointTaker(sandbox, self)
        sandbox.past.unload = lambda step, why: self.disk.take(taker, step, why)
        sandbox.on_points_stopped = lambda: self._forget(sandbox)
        if _frozen(taker):
            self.took(taker)

    def forked(self, sandbox: Sandbox) -> None:
        """It was, and may be again: if too many ancestors of it live, it is to have none."""
        if sandbox in self._takers and sandbox.body.ancestors > self.settings.ancestors:
            self._flattener.consider(sandbox)

    def _has_children(self, sandbox: Sandbox) -> bool:
        return any(other.identity.parent == sandbox.id for other in self._takers)

    def _forget(self, sandbox: Sandbox) -> None:
        self._flattener.forget(sandbox)
        self._takers.pop(sandbox, None)
        if sandbox.body.ancestors > self.settings.ancestors:
            for parent in [other for other in self._takers if other.id == sandbox.identity.parent]:
                self.forked(parent)  # this was its child

    def release(self, state: State) -> None:
        self._background(state.let_go())

    # Taking

    def ask(self, taker: PointTaker) -> None:
        if taker not in self._asking:
            self._asking.append(taker)
        if not self._working:
            self._working = True
            self._background(self._work())

    async def _work(self) -> None:
        try:
            while self._asking:
                taker = self._asking.popleft()
                began = perf_counter()
                # A sandbox that closes just now takes no turn.
                async with self.lock:
                    with suppress(RametError):
                        await taker.take_if_idle()
                await asyncio.sleep(_REST * (perf_counter() - began))
        finally:
            self._working = False

    async def freeze(self, sandbox: Sandbox) -> Snapshot:
        """Freeze a sandbox without harm to it: a REPL that does not answer is left alone. Raises ForkFailed."""
        repl = sandbox.repl
        if repl.asked:
            raise ForkFailed("the sandbox could not be frozen: its Python has not answered an earlier question")
        await repl.settle()
        # As ``snapshots.settle`` does, but without an end of the REPL if it does not answer.
        keep_pid = sandbox.spec.template.python_version < (3, 12)
        if keep_pid:
            keep_pid = await repl.runs_loops(self.settings.point_loop_seconds)
        machine = await self._workshop.machine()
        frozen = await machine.freeze(sandbox.body, keep_pid)
        return Snapshot(frozen, sandbox.spec, sandbox.carried, keep_pid)

    async def back_to_last(self, sandbox: Sandbox, watch_seconds: float) -> Recovered:
        return await back_to_last(self._workshop, sandbox, self.retire, watch_seconds)

    # The budget

    def took(self, taker: PointTaker) -> None:
        self._unmeasured[taker] = None
        if not self._measuring:
            self._measuring = True
            self._background(self._measure_all())

    async def _measure_all(self) -> None:
        """Measure what was taken in a while: cells that follow one another must not pay for this."""
        try:
            while self._unmeasured:
                await asyncio.sleep(_MEASURE_SECONDS)
                taken, self._unmeasured = self._unmeasured, {}
                for taker in taken:
                    await self._measure(taker)
                self._fit()
        finally:
            self._measuring = False

    async def _measure(self, taker: PointTaker) -> None:
        """Learn what its states take, and drop those that the kernel has ended."""
        kept = _frozen(taker)
        taker.measured += 1
        if taker.measured % _MEASURED_AGAIN:
            # The newest one shares all its memory still; the one before it has what was changed since.
            newest = {step for step, _ in kept[-2:]}
            kept = [(step, snapshot) for step, snapshot in kept if step in newest or not step.memory_bytes]
        pids = {step: snapshot.frozen.shadow for step, snapshot in kept}
        found = await asyncio.to_thread(own_memory, [pid for pid in pids.values() if pid])
        for step, snapshot in kept:
            if step.state is not snapshot:
                continue  # dropped while it was measured in a thread
            if pids[step] in found:
                step.memory_bytes = found[pids[step]] + snapshot.frozen.file_bytes + _KERNEL_BYTES
                if step.in_pod:
                    # Memory that only the point holds counts for the past, not for the sandbox.
                    snapshot.frozen.allow(found[pids[step]])
            elif not await snapshot.frozen.usable() and step.state is snapshot:
                taker.past.drop(step, KILLED)

    def _fit(self) -> None:
        """Drop states until all are within their bounds. The owner that holds most gives up first, so that nobody can
        use up the history of others; of its sandboxes those not used for longest.
        """
        kept = [
            (taker, step, snapshot)
            for taker in self._takers.values()
            for step, snapshot in _frozen(taker)
            if not step.leaving
        ]
        held = Counter(snapshot for _, _, snapshot in kept)
        # Only states that the past alone holds: dropping a snapshot of the user's would free nothing.
        bytes_of = {snapshot: step.memory_bytes for _, step, snapshot in kept if snapshot.holders <= held[snapshot]}
        automatic = {snapshot for taker, _, snapshot in kept if taker.automatic}
        total_bytes = sum(bytes_of.values())
        at_most, settings = self._bytes_at_most or 0, self.settings
        kept.sort(key=lambda one: one[0].used_at)
        while True:
            too_large, too_many = total_bytes > at_most, len(bytes_of) > settings.points
            if not too_large and not too_many:
                if len(automatic) <= settings.points_automatic:
                    return
                kept = [one for one in kept if one[0].automatic]
            if not kept:
                return
            weights: Counter[str] = Counter()
            for taker, _, snapshot in kept:
                weights[taker.sandbox.owner] += bytes_of.get(snapshot, 0) if too_large else 1
            greatest = max(weights, key=lambda owner: weights[owner])
            taker, step, snapshot = given_up = next(one for one in kept if one[0].sandbox.owner == greatest)
            kept.remove(given_up)
            self.disk.take(taker, step, GIVEN_UP)
            held[snapshot] -= 1
            if not held[snapshot]:
                total_bytes -= bytes_of.pop(snapshot, 0)
                automatic.discard(snapshot)

    def facts(self, owner: str | None) -> dict[str, int]:
        """How many states are kept, and the memory that they take."""
        takers = [taker for taker in self._takers.values() if owner in (None, taker.sandbox.owner)]
        kept = {snapshot: step.memory_bytes for taker in takers for step, snapshot in _frozen(taker)}
        return {"points": len(kept), "memory_bytes": sum(kept.values()), **self.disk.facts(owner)}


def _frozen(taker: PointTaker) -> list[tuple[Step, Snapshot]]:
    return [(step, step.state) for step in taker.past.kept() if isinstance(step.state, Snapshot)]
