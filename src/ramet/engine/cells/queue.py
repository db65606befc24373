"""The queue of one sandbox: cells and turns in order of arrival, one of them current at a time."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from ramet.engine.cells.cell import Cell
from ramet.engine.cells.early_cells import EarlyCells
from ramet.engine.cells.identity import Identity
from ramet.engine.cells.turns import Turn
from ramet.engine.settings import Settings
from ramet.errors import ExecutionCancelled, LimitReached, RametError, SandboxClosed


class Stage(Protocol):
    """The sandbox, as its queue sees it."""

    @property
    def preparing(self) -> bool:
        """Whether the current item waits for a REPL, tools or a network. It goes on with the queue by itself then."""

    def begin(self, item: Cell | Turn) -> None:
        """Start an item, now or when all that it needs is there."""

    def interrupt_cell(self) -> bool:
        """Interrupt the cell that runs in the REPL. False if none does."""


class CellQueue:
    """Owned by the sandbox, which says with ``next`` that the current item is over."""

    def __init__(self, identity: Identity, settings: Settings, stage: Stage) -> None:
        self.current: Cell | Turn | None = None
        self.closed = False  # nothing more is taken, and nothing begins
        self._identity = identity
        self._settings = settings
        self._stage = stage
        self._queue: deque[Cell | Turn] = deque()
        self._early = EarlyCells(settings.early_seconds, self._submit_late)

    def __repr__(self) -> str:
        return f"<CellQueue {self.waiting} waiting>"

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self._early)

    @property
    def busy(self) -> bool:
        return self.current is not None or bool(self._queue) or bool(self._early)

    # Coming

    def submit(self, cell: Cell, after: str | None = None) -> None:
        """Run a cell now, or when those before it are over. Not before the execution ``after``, if that is to come.

        Raises SandboxClosed or LimitReached.
        """
        if after is not None and not self._has_come(after):
            self._check("run a cell")
            self._early.hold(cell, after)
            return
        self._enqueue(cell, "run a cell")
        if self._early:
            self._follow(cell)

    def turn(self, needs_repl: bool, quiet: bool = False) -> Turn:
        """A turn between two cells, now or when those before it are over. Raises SandboxClosed or LimitReached."""
        turn = Turn(needs_repl, self._leave, quiet)
        self._enqueue(turn, "do this")
        return turn

    def _has_come(self, execution: str) -> bool:
        known = self._identity.executions.known(execution)
        return known is not None and (known.cell is None or known.cell not in self._early)

    def _follow(self, cell: Cell) -> None:
        """Enqueue the cells that arrived before this one, though their caller had sent it first."""
        come = deque((cell,))
        while come:
            for early in self._early.follow(come.popleft().execution):
                self._enqueue_or_fail(early)
                come.append(early)

    def _submit_late(self, cell: Cell) -> None:
        self._enqueue_or_fail(cell)
        self._follow(cell)

    def _enqueue_or_fail(self, cell: Cell) -> None:
        try:
            self._enqueue(cell, "run a cell")
        except RametError as error:
            cell.on_error(error)

    def _check(self, what: str) -> None:
        if self.closed:
            raise SandboxClosed(f"cannot {what}: {self._identity.ended}")
        if self.waiting >= self._settings.waiting_cells:
            raise LimitReached(
                f"cannot {what}: {self.waiting} cells are already waiting in sandbox {self._identity.id}",
                hint="wait for some results first, or use more sandboxes",
            )

    def _enqueue(self, item: Cell | Turn, what: str) -> None:
        self._check(what)
        if self.current is None:
            self._begin(item)
        else:
            self._queue.append(item)

    def _begin(self, item: Cell | Turn) -> None:
        self.current = item
        self._stage.begin(item)

    def next(self) -> None:
        """The current item is over."""
        if not (isinstance(self.current, Turn) and self.current.quiet):
            self._identity.clock.touch()
        self.current = None
        if self._queue and not self.closed:
            self._begin(self._queue.popleft())

    # Leaving

    def abandon(self, cell: Cell) -> None:
        """The caller disconnected: a waiting cell is dropped, a running one interrupted."""
        cell.abandoned = True
        if cell is self.current:
            self._stage.interrupt_cell()
        else:
            self._remove(cell)

    def cancel(self, cell: Cell, why: str) -> bool:
        """Drop a waiting cell, whose caller gets an error, or interrupt a running one. False if it is over."""
        if cell is self.current and self._stage.interrupt_cell():
            return True
        if cell is self.current and self._stage.preparing:
            cell.abandoned = True  # it will not begin when the new REPL is there
        elif cell in self._queue or cell in self._early:
            self._remove(cell)
        else:
            return False
        cell.on_error(ExecutionCancelled(f"the cell was cancelled: {why}"))
        return True

    def interrupt(self) -> bool:
        """Interrupt the running cell. False if none runs."""
        if isinstance(self.current, Cell) and self._stage.preparing:
            self.current.interrupted = True  # as soon as it begins
            return True
        return self._stage.interrupt_cell()

    def _leave(self, turn: Turn) -> None:
        """A turn is over, or was given up."""
        if turn is not self.current:
            self._remove(turn)
        elif not self._stage.preparing:  # else the recovery goes on, and then with the next in the queue
            self.next()

    def _remove(self, item: Cell | Turn) -> None:
        if isinstance(item, Cell) and self._early.remove(item):
            return
        try:
            self._queue.remove(item)
        except ValueError:
            pass  # over already

    def fail_all(self, why: str) -> None:
        """Give up the current item and all that wait; each caller gets an error."""
        items = [*self._queue, *self._early.take_all()]
        self._queue.clear()
        if self.current is not None:
            items.insert(0, self.current)
        for item in items:
            if isinstance(item, Turn):
                item.on_error(SandboxClosed(f"the call was cancelled: {why}"))
            elif not item.abandoned:
                item.on_error(ExecutionCancelled(f"the cell was cancelled: {why}"))
