"""When the states of one sandbox are kept: in the idle moment after a cell, or before the next one if that is cheap."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from ramet.engine.cells.cell import Cell
from ramet.engine.cells.repl import Ending
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.history.expense import Expense
from ramet.engine.history.memory import resident_bytes
from ramet.engine.history.past import ENDS_ITSELF, Past, Recovered, Step
from ramet.engine.images.points import DiskState
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.seams import Body
from ramet.engine.settings import Settings
from ramet.errors import RametError
from ramet.protocol.values.history import Taking

_NOTICED_BYTES = 16 * 2**20  # of growth: a sandbox that grew by less is measured no further
_FULL = 0.7  # of the memory limit, above which no automatic point is taken
_SUSPECT_RESTORES = 2  # to one state, with no cell that ended well between them
_WATCHED_SECONDS_AT_MOST = 2.0  # one that lives for longer lets short cells end well
_WORKED_SECONDS = 0.001  # of its threads between two cells, which are noticed
_ANEW_SECONDS = 1.0  # after which a state that is not the present one any more is kept anew
_RETRY_SECONDS = 5.0  # after a freeze that failed; twice as long after each further one
_RETRY_SECONDS_AT_MOST = 600.0


class PointKeeper(Protocol):
    """The part of the history of all sandboxes that is needed here."""

    settings: Settings
    lock: asyncio.Lock  # one freeze at a time: others would wait in their turns, and hold up their cells

    def ask(self, taker: PointTaker) -> None:
        """Have ``take_if_idle`` called when it is its turn."""

    def took(self, taker: PointTaker) -> None:
        """A state was kept: see soon what all of them take."""

    async def freeze(self, sandbox: Sandbox) -> Snapshot: ...
    async def back_to_last(self, sandbox: Sandbox, watch_seconds: float) -> Recovered:
        """Restore a sandbox whose REPL has ended. A state that ends by itself within that time is not taken."""


class PointTaker:
    """Keeps the states of one sandbox. Never fails: a state that cannot be kept gives no point, and it says why."""

    def __init__(self, sandbox: Sandbox, keeper: PointKeeper) -> None:
        self.sandbox = sandbox
        self._keeper = keeper
        self._settings = settings = keeper.settings
        self._loop = asyncio.get_running_loop()
        wanted = sandbox.past.wanted
        self.automatic = wanted is None
        self._takes = settings.automatic_points if wanted is None else wanted > 0
        self._expense = Expense(settings.point_share, settings.points_before_cells, self._loop.time)
        self.used_at = self._loop.time()
        self.measured = 0  # how often its states were
        self._changed_at = self._quiet_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._refused = ""  # why no point was taken: it would have been too dear
        self._failed = ""  # why the last freeze failed
        self._failures = 0  # in a row
        self._retry_at = 0.0
        # Of the body, when its last state was kept: what it takes beyond that was written since.
        self._kept_at: tuple[Body, int] | None = None
        self._weighed: Step | None = None  # the step by whose state it is known how much is rewritten after it
        # Of the body, when the present state was kept or gone back to: the time that its threads had worked, and when.
        self._worked_at: tuple[Body, float, float] | None = None
        self._changes = 0  # from outside, so far
        self._written_in_cell = False  # from outside, while the present cell runs
        # The step it was restored to, while no cell has ended well since: how often, when, and what is known of it.
        self._restored_to: Step | None = None
        self._restores = 0
        self._restored_at = 0.0
        self._died_idle = False  # the last death was between two cells
        self._watched = False  # it has lived by itself for longer than its cells did

    def __repr__(self) -> str:
        return f"<PointTaker of {self.sandbox.id}, {self.sandbox.past}>"

    @property
    def past(self) -> Past:
        return self.sandbox.past

    # Events of the sandbox

    def cell_ended(self, cell: Cell, ending: Ending) -> None:
        self.used_at = self._loop.time()
        written, self._written_in_cell = self._written_in_cell, False
        if self.past.wanted == 0:
            return
        if ending.state == "kept":
            self._restored_to, self._died_idle = None, False
        self._expense.ran(ending.duration_seconds)
        names = cell.tool_records.names if cell.tool_records is not None else ()
        if ending.state == "restored" and written and (last := self.past.last) is not None:
            last.stale = True  # it may have come after the restore
        self.past.add_cell(cell.cell_id, cell.code, _outcome(ending), names, self.sandbox.attempts)
        self._arm(self._settings.point_idle_seconds)

    def touched(self, memory: bool) -> None:
        """Files or values were changed from outside: the last state is not as it was kept."""
        self._changes += 1
        if self.sandbox.cell_runs:
            # The state before it is not touched, and the one after it is not kept yet.
            self._written_in_cell = True
        elif (last := self.past.last) is not None:
            last.stale = True
            last.blank = last.blank and not memory
            self._arm(self._settings.point_outside_seconds)

    def moved(self) -> None:
        """The sandbox is at a kept state again, in another body."""
        self._kept_at = self._weighed = None
        self._note_work()
        for step in self.past.steps:
            step.in_pod = False
        self._keeper.took(self)  # states that it did not take itself: a snapshot's, or those of another sandbox

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def stepped(self) -> None:
        """A step was added to the past that is no cell."""
        self.used_at = self._loop.time()
        self._arm(self._settings.point_idle_seconds)

    # In the idle moment

    def _arm(self, seconds: float) -> None:
        self._changed_at, self._quiet_seconds = self._loop.time(), seconds
        # One timer, which looks again when it rings: a cell must not pay for cancelling it and setting another.
        if self._timer is None and self._takes and not self._stopped:
            self._timer = self._loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if not self._wanted() or isinstance(self.sandbox.queue.current, Cell):
            return  # the end of that cell sets the timer again
        wait = self._changed_at + self._quiet_seconds - self._loop.time()
        if wait > 0 or self.sandbox.queue.busy:
            self._timer = self._loop.call_later(max(wait, self._settings.point_idle_seconds), self._ring)
        else:
            self._keeper.ask(self)

    def _wanted(self) -> bool:
        """Whether the present state is not kept, and could be."""
        last = self.past.last
        return last is not None and not last.exact and self._may_take()

    def _may_take(self) -> bool:
        return self._takes and not self._stopped and self.sandbox.repl.alive and self._loop.time() >= self._retry_at

    async def take_if_idle(self) -> None:
        """Called by the keeper, which holds the lock."""
        if self.automatic and self._wanted() and not self.sandbox.queue.busy:
            await self._weigh()
        # Asked again: a cell may have come while it was weighed.
        if not self._wanted() or self.sandbox.queue.busy:
            return
        if self.automatic and self._refuses(patient=True):
            return
        turn = self.sandbox.queue.turn(needs_repl=False, quiet=True)
        try:
            await self._take()
        finally:
            turn.release()

    async def _weigh(self) -> None:
        """See how much of its memory the sandbox has rewritten since its last point."""
        newest = self._newest()
        if newest is None or self._kept_at is None:
            return
        body, before = self._kept_at
        step, snapshot = newest
        if body is not self.sandbox.body or step is self._weighed:
            return
        self._weighed = step
        memory_bytes = body.unique_bytes()
        rewritten = memory_bytes - before
        if rewritten > _NOTICED_BYTES:
            try:
                # What grew is either new or a copy of what the point shares: only the process's own size tells.
                grown = await asyncio.to_thread(_growth, body, snapshot.frozen.shadow)
            except OSError:
                return
            rewritten -= max(grown, 0)
        self._expense.wrote(max(rewritten, 0), before)

    def _newest(self) -> tuple[Step, Snapshot] | None:
        for step in reversed(self.past.steps):
            if isinstance(step.state, Snapshot):
                return step, step.state
        return None

    def _refuses(self, patient: bool) -> bool:
        last = self.past.last
        body = self.sandbox.body
        memory_bytes = body.unique_bytes()
        if memory_bytes > _FULL * self.sandbox.spec.limits.memory_bytes:
            self._refused = "it uses most of the memory that it may use, and what points hold counts in that"
        else:
            self._refused = self._expense.refusal(memory_bytes, _file_bytes(body), patient)
        if self._refused and last is not None and last.state is None:
            last.unkept = self._refused
        return bool(self._refused)

    # Before the next cell

    @property
    def due(self) -> bool:
        """Whether the next cell should wait until the state before it is kept."""
        last = self.past.last
        if last is None or not self._takes or self._stopped or self._loop.time() < self._retry_at:
            return False
        if last.exact and not self._went_on():
            return False
        if not self.automatic:
            return True
        if last.exact:
            return not self._keeper.lock.locked() and not self._refuses(patient=False)
        if last.stale and self.can_restore:
            # A death in the next cell would take back what was written, although no cell did it.
            return not self._refuses(patient=False)
        return self._expense.may_wait and not self._keeper.lock.locked() and not self._refuses(patient=False)

    async def before_cell(self) -> None:
        if self.automatic and self._expense.may_wait:
            self._expense.waited()
        async with self._keeper.lock:
            # Asked again: the state may have been kept while this waited for the lock.
            if self._wanted() or (self._may_take() and self._went_on()):
                await self._take()

    def _note_work(self) -> None:
        body = self.sandbox.body
        self._worked_at = body, body.processor_seconds(), self._loop.time()

    def _went_on(self) -> bool:
        """Whether threads of the sandbox have worked since its last state was kept: it is not the present one.

        In automatic mode only if that was a while ago: the time since then pays for another.
        """
        if self._worked_at is None:
            return False
        body, seconds, since = self._worked_at
        if body is not self.sandbox.body or (self.automatic and self._loop.time() - since < _ANEW_SECONDS):
            return False
        return body.processor_seconds() - seconds > _WORKED_SECONDS

    # Both

    async def _take(self) -> None:
        """Freeze the sandbox, in a turn or before a cell."""
        step, body = self.past.last, self.sandbox.body
        assert step is not None
        if body.unique_bytes() > self.sandbox.spec.limits.memory_bytes:
            self._make_room()
        began = perf_counter()
        changes = self._changes  # a file call takes no turn
        try:
            snapshot = await self._keeper.freeze(self.sandbox)
        except Exception as error:
            self._on_failure(step, error)
            return
        if self._stopped or self.past.last is not step:
            # It began to close during the freeze, or a return to another point has changed its past.
            await snapshot.let_go()
            return
        self._expense.took(perf_counter() - began)
        self._failures, self._failed = 0, ""
        snapshot.frozen.give_way()
        memory_bytes = body.unique_bytes()
        before = self._kept_at[1] if self._kept_at is not None and self._kept_at[0] is body else 0
        step.changed_bytes = max(memory_bytes - before, 0)
        step.pause_seconds = snapshot.frozen.pause_seconds
        self._kept_at = body, memory_bytes
        self._note_work()
        self.past.keep(step, snapshot, stale=self._changes != changes)
        step.in_pod = step.state is snapshot
        self._keeper.took(self)

    def _make_room(self) -> None:
        """Drop all points. With the allowance for its forks it uses more than its limit, and they would keep it so."""
        for step in self.past.steps:
            if isinstance(step.state, Snapshot):
                self.past.drop(step, "its memory was needed by the sandbox itself")

    def _on_failure(self, step: Step, error: Exception) -> None:
        if not isinstance(error, RametError):
            traceback.print_exc(file=sys.stderr)
        self._failed = error.message if isinstance(error, RametError) else str(error) or type(error).__name__
        self._retry_at = self._loop.time() + min(_RETRY_SECONDS * 2**self._failures, _RETRY_SECONDS_AT_MOST)
        self._failures += 1
        if step.state is None:
            step.unkept = f"it could not be kept: {self._failed}"

    def taking(self) -> tuple[Taking, str]:
        """Whether points are taken, and why they are not."""
        if self.past.wanted == 0:
            return "off", "no points are taken: history=False"
        if not self._takes:
            return "off", "this engine takes no automatic points; history=N asks for the last N"
        if self._loop.time() < self._retry_at:
            return "suspended", f"no points are taken for now: {self._failed}"
        if self._refused:
            return "suspended", f"automatic points are rare for now: {self._refused}; history=N takes each"
        return "on", ""

    # Recovery

    @property
    def can_restore(self) -> bool:
        """Whether there is a state to go back to that is more than an empty Python."""
        if self.sandbox.spec.recover != "point":
            return False
        return any(isinstance(step.state, Snapshot | DiskState) and not step.blank for step in self.past.steps)

    async def restore_last(self, idle: bool) -> Recovered:
        """Bring a sandbox whose REPL has ended back to its last kept state. Raises RametError.

        ``idle``: it ended between two cells. If that happens again at once, the state itself is to blame.
        """
        watch_seconds = self._suspect(idle)
        written, self._written_in_cell = self._written_in_cell, False
        back = await self._keeper.back_to_last(self.sandbox, watch_seconds)
        if back.step is not self._restored_to:
            self._restored_to, self._restores, self._watched = back.step, 0, False
        self._restores += 1
        self._restored_at = self._loop.time()
        return replace(back, written=back.written or written)

    def _suspect(self, idle: bool) -> float:
        """Find out whether the cells are to blame for the deaths, or a thread of the state that they began with.

        Drops a state that has ended twice while no cell ran. Returns for how long to watch the state after the restore,
        without a cell: a user who tries the same deadly cell again and again must not lose a good one.
        """
        step, again = self._restored_to, idle and self._died_idle
        self._died_idle = idle
        if step is None or step.state is None:
            return 0.0
        if again:
            self.past.drop(step, ENDS_ITSELF)
            return 0.0
        lived_seconds = self._loop.time() - self._restored_at
        if idle or self._watched or self._restores < _SUSPECT_RESTORES or lived_seconds > _WATCHED_SECONDS_AT_MOST:
            return 0.0
        self._watched = True
        return 1.5 * lived_seconds + 0.1


def _outcome(ending: Ending) -> str:
    if ending.state != "kept":
        return "died"
    if ending.interrupted:
        return "interrupted"
    return "ok" if ending.exit_code == 0 else "error"


def _file_bytes(body: Body) -> int:
    """The memory that its files take, in bytes."""
    try:
        found = os.fstatvfs(body.root)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _growth(body: Body, shadow: int) -> int:
    """How much larger the sandbox is than its frozen copy. Raises OSError if that has ended."""
    usage = body.usage()
    return usage.get("private_bytes", 0) + usage.get("shared_bytes", 0) - resident_bytes(shadow)
