"""Cells that came before one that their caller had sent earlier.

Over HTTP each call has a connection of its own, and of two that are made at the same moment either can be here first. A
caller who has several under way says with each which one it made before. What comes too early is held here until that
one has come, or for a short while: it may never come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ramet.engine.cell import Cell


class EarlyCells:
    """Those of one sandbox. ``give_up`` is called with a cell that has waited long enough."""

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
        """Those that waited for this execution, which has come; they wait no longer."""
        cells = self._after.pop(execution, [])
        for cell in cells:
            self._timers.pop(cell).cancel()
        return cells

    def remove(self, cell: Cell) -> bool:
        """Let go of a cell. False if it is not here."""
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
