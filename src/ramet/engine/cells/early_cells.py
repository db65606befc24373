"""Holds cells that arrived before one that their caller had sent earlier.

Over HTTP each call has a connection of its own, so two calls made at the same moment can arrive in either order. A
caller with several calls in flight names, with each, the one that it made before. A cell that arrives too early is held
until that one arrives, or for a short while: it may never arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ramet.engine.cells.cell import Cell


class EarlyCells:
    """The early cells of one sandbox. ``give_up`` is called with a cell that has waited long enough."""

    def __init__(self, seconds: float, give_up: Callable[[Cell], None]) -> None:
        self._seconds = seconds
        self._give_up = give_up
        self._after: dict[str, list[Cell]] = {}  # by the execution that each waits for
        self._timers: dict[Cell, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def __contains__(self, cell: object) -> bool:
        return cell in self._timers

    def hold(self, cell: Cell, execution: str) -> None:
        self._after.setdefault(execution, []).append(cell)
        timer = asyncio.get_running_loop().call_later(self._seconds, self._late, cell)
        self._timers[cell] = timer

    def follow(self, execution: str) -> list[Cell]:
        """Release and return the cells that waited for this execution, which has now arrived."""
        cells = self._after.pop(execution, [])
        for cell in cells:
            self._timers.pop(cell).cancel()
        return cells

    def remove(self, cell: Cell) -> bool:
        """Drop a cell. False if it is not held here."""
        timer = self._timers.pop(cell, None)
        if timer is None:
            return False
        timer.cancel()
        for execution, cells in list(self._after.items()):
            if cell in cells:
                cells.remove(cell)
                if not cells:
                    del self._after[execution]
        return True

    def take_all(self) -> list[Cell]:
        cells = list(self._timers)
        for cell in cells:
            self.remove(cell)
        return cells

    def _late(self, cell: Cell) -> None:
        self.remove(cell)
        self._give_up(cell)
