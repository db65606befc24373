"""Recovery of a sandbox whose REPL has ended: back to its last kept state, or a fresh REPL; the next result says so."""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import Protocol

from ramet.engine.cells import repl_endings
from ramet.engine.cells.cell import Cell
from ramet.engine.cells.identity import Identity
from ramet.engine.cells.points import Points
from ramet.engine.cells.queue import CellQueue
from ramet.engine.cells.repl import Ending, Repl
from ramet.engine.making.recover import Recovering, recover
from ramet.errors import RametError


class Recoverable(Recovering, Protocol):
    """The part of a sandbox that is needed here."""

    identity: Identity
    queue: CellQueue
    repl: Repl
    points: Points | None

    @property
    def closing(self) -> bool: ...
    def check_open(self) -> None:
        """Raise SandboxClosed if it is closing."""

    def collect(self, cell: Cell, ending: Ending) -> None:
        """Deliver the outcome of a cell when its output is complete."""


class Recovery:
    """Owns what one sandbox does about a lost REPL, and what the next result has to say about it."""

    def __init__(self, sandbox: Recoverable) -> None:
        self._sandbox = sandbox
        self._note = ""  # for the next cell, which has no other way to know
        # Runs between the end of a REPL in a cell and the outcome of that cell: the queue waits for the outcome.
        self._restoring: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Recovery of {self._sandbox!r}{', restoring' if self._restoring is not None else ''}>"

    # The REPL ended in a cell

    def cell_lost(self, cell: Cell, ending: Ending) -> None:
        """Go back to the last kept state if there is one. The outcome of the cell, delivered afterwards, says which."""
        points = self._sandbox.points
        if points is not None and points.can_restore and not self._sandbox.closing:
            self._restoring = asyncio.get_running_loop().create_task(self._restore_after(points, cell, ending))
        else:
            self._tell_loss(cell, ending)

    async def _restore_after(self, points: Points, cell: Cell, ending: Ending) -> None:
        ended = self._sandbox.repl  # before the restore, which puts another in its place
        try:
            back = await points.restore_last(idle=False)
        except Exception as error:
            if not isinstance(error, RametError):
                traceback.print_exc(file=sys.stderr)
            restored = None
        else:
            restored = repl_endings.restored(ended.why_ended, back.step.where(), back.lost_cells, back.written)
        self._restoring = None
        if self._sandbox.closing or cell is not self._sandbox.queue.current:
            return  # the sandbox was closed during the restore, which has cancelled the cell
        if restored is None:
            self._tell_loss(cell, ending)
            return
        ended.note_for(cell, restored.message)
        self._sandbox.collect(cell, ending._replace(state="restored", error=restored))

    def _tell_loss(self, cell: Cell, ending: Ending) -> None:
        assert ending.error is not None
        self._sandbox.repl.note_for(cell, ending.error.message)
        self._sandbox.collect(cell, ending)

    # A cell or turn needs a REPL

    async def recover(self) -> None:
        """Bring back the last kept state, or start a fresh REPL in the same pod. Raises what ``recover`` raises."""
        sandbox = self._sandbox
        sandbox.repl.detach()
        carried = sandbox.identity.carried
        # One that could not be configured was given up; what ended before it is what was lost.
        reason = sandbox.repl.why_ended or carried.why_restarted
        # A result has said already that the next cell starts in a fresh Python.
        promised = carried.loss_told
        if sandbox.points is not None and sandbox.points.can_restore and not promised:
            try:
                back = await sandbox.points.restore_last(idle=True)
            except RametError:
                sandbox.check_open()  # else as if there were no kept state
            else:
                self._note = repl_endings.restored_before(reason, back.step.where(), back.lost_cells, back.written)
                return
        # Not the one from before the wait: where a restore failed half-way, the sandbox may have adopted another.
        sandbox.identity.carried.why_restarted = reason
        await recover(sandbox)

    # The next cell

    def tell_next_cell(self, note: str) -> None:
        """The next result has this sentence in its stderr, and ``restored``."""
        self._note = note

    def tell(self, cell: Cell) -> None:
        """Say in the stderr of a cell that has just begun what was lost before it."""
        carried = self._sandbox.identity.carried
        if carried.restarted:
            self._sandbox.repl.note(repl_endings.restarted(carried.why_restarted))
        elif self._note:
            self._sandbox.repl.note(self._note)
            cell.restored = True
        self._note = ""

    async def settled(self) -> None:
        """Wait for a restore that is under way: a sandbox that closes must not close the body that it replaces."""
        if self._restoring is not None:
            await asyncio.wait([self._restoring])
