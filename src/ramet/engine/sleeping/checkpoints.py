"""Checkpoints of a persistent sandbox: its state is written to disk in the background, some time after a cell."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.workshop import Workshop
from ramet.engine.seams import Body, Journal
from ramet.engine.sleeping.hibernation import check_room, write
from ramet.errors import RametError

CHECKPOINT_SECONDS = 10.0
_WORKED_SECONDS = 0.001  # of its threads, which are noticed
_RETRY_SECONDS = 30.0  # after one that failed

Perform = Callable[[Coroutine[object, object, None]], asyncio.Task[None]]
Freeze = Callable[[Sandbox], Awaitable[Snapshot]]


class Checkpoints:
    """Writes the states of one sandbox, and the journal of cells that are in none of them. Never fails the sandbox."""

    def __init__(
        self,
        sandbox: Sandbox,
        journal: Journal,
        about: Callable[[], Mapping[str, object]],
        workshop: Workshop,
        freeze: Freeze,
        perform: Perform,
        changes: int = 0,
    ) -> None:
        """``about``: what the journal is to say of the sandbox. ``changes``: the number of the last one in it."""
        self.journal = journal
        self._about = about
        self.sandbox = sandbox
        self._workshop = workshop
        self._freeze = freeze
        self._perform = perform
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        # One at a time: of two writes, the older state could be the one that stays on disk.
        self._working: asyncio.Task[None] | None = None
        # Set when the sandbox closes or the engine ends: a checkpoint after that would replace its last state.
        self._stopped = False
        self.changes = changes
        self._told = ""  # the change that the journal told last, if no image has it
        # The state in the newest image: number of changes, body, and processor time of its threads.
        self._written: tuple[int, Body, float] | None = None

    def __repr__(self) -> str:
        return f"<Checkpoints of {self.sandbox.id}>"

    @property
    def _seconds(self) -> float:
        wanted = self.sandbox.spec.checkpoint_seconds
        return CHECKPOINT_SECONDS if wanted is None else wanted

    # Events of the sandbox

    def cell_begun(self, cell_id: int, code: bytes) -> None:
        self.journal.begun(cell_id, code)

    def extended(self) -> None:
        self.journal.introduce(self._about())

    async def sync(self) -> None:
        await asyncio.to_thread(self.journal.sync)

    def changed(self, what: str = "") -> None:
        self.changes += 1
        if what and what != self._told:
            self.journal.changed(self.changes, what)
            self._told = what
        self._arm(self._seconds)

    def begin(self) -> None:
        """Write the first one soon: a sandbox without an image would not survive anything."""
        self._arm(0.0)

    async def flush(self) -> None:
        """The engine ends: write the present state now if it is not on disk. Raises RametError."""
        if self._stopped:
            return  # it is being closed, and written by who closes it
        if self._working is not None:
            await asyncio.wait([self._working])
        self.stop()
        if self.sandbox.spec.persistent and not self.sandbox.sleep.asleep and self._differs():
            await self._write()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._working is not None:
            self._working.cancel()

    # Writing

    def _arm(self, seconds: float) -> None:
        # One timer, which later changes do not put off: a sandbox that is always busy is written as well.
        if self._timer is None and not self._stopped and self.sandbox.spec.persistent:
            self._timer = self._loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._working is None:
            self._working = self._perform(self._checkpoint())

    async def _checkpoint(self) -> None:
        try:
            if not self._stopped and not self.sandbox.sleep.asleep and self._differs():
                await self._write()
        except Exception as error:
            if not isinstance(error, RametError):
                traceback.print_exc(file=sys.stderr)
            self.sandbox.on_disk.last_error = str(error) or type(error).__name__
            self._arm(max(self._seconds, _RETRY_SECONDS))
        finally:
            self._working = None
        if not self.sandbox.on_disk.last_error and self._differs():
            self._arm(self._seconds)  # it was changed while it was written

    def _differs(self) -> bool:
        """Whether the newest image is not its present state, as far as can be seen without a freeze."""
        if self._written is None:
            return True
        changes, body, worked = self._written
        if self.sandbox.sleep.asleep:
            return False
        present = self.sandbox.body
        return changes != self.changes or body is not present or present.processor_seconds() - worked > _WORKED_SECONDS

    async def _write(self) -> None:
        machine = await self._workshop.machine()
        await check_room(self._workshop, self.sandbox)
        snapshot = self._newest_point()
        changes, body = self._present()
        worked = body.processor_seconds()
        if snapshot is None:
            turn = self.sandbox.queue.turn(needs_repl=True, quiet=True)
            try:
                await turn.begun
                # Read anew: cells that ran while the turn waited are in the state that is frozen now.
                changes, body = self._present()
                worked = body.processor_seconds()
                snapshot = await self._freeze(self.sandbox)
                turn.check()  # it began to close during the freeze, and whoever closes it writes its last state
            finally:
                turn.release()
        try:
            await write(machine, self.sandbox, snapshot, changes)
        finally:
            await snapshot.let_go()
        self._written = changes, body, worked
        self.journal.written(snapshot.carried.cells, changes)

    def _present(self) -> tuple[int, Body]:
        """The last change, and the body, of what is frozen next. The same change again is another one."""
        self._told = ""
        return self.changes, self.sandbox.body

    def _newest_point(self) -> Snapshot | None:
        """The present state, held, if the history keeps it: then the sandbox need not be stopped."""
        last = self.sandbox.past.last
        if last is None or not last.exact or not isinstance(last.state, Snapshot) or last.asked is not None:
            return None
        if self.sandbox.queue.busy or not self.sandbox.repl.alive:
            return None
        last.state.hold()
        return last.state
