"""What a sandbox knows of its history: something that keeps its states, and brings it back to the last one."""

from __future__ import annotations

from typing import Protocol

from ramet.engine.cells.cell import Cell
from ramet.engine.cells.repl import Ending
from ramet.engine.history.past import Recovered
from ramet.protocol.values.history import Taking


class Keeping(Protocol):
    """What keeps a sandbox on disk. It never fails the sandbox."""

    def cell_begun(self, cell_id: int, code: bytes) -> None: ...
    @property
    def changes(self) -> int:
        """The number of the last change."""

    def changed(self, what: str = "") -> None:
        """Its last image is not its present state any more. ``what`` is told if it is missing after a crash."""

    def extended(self) -> None:
        """It ends at another time than was said before."""

    async def sync(self) -> None:
        """Wait until an engine that finds its image can find out what it is."""


class Points(Protocol):
    """What keeps states of a sandbox, and brings it back to the last one. It never fails the sandbox."""

    @property
    def due(self) -> bool:
        """Whether the next cell should wait until the state before it is kept. Asked before each cell: cheap."""

    async def before_cell(self) -> None: ...
    def cell_ended(self, cell: Cell, ending: Ending) -> None: ...
    def touched(self, memory: bool) -> None:
        """Files were changed from outside, or values in its memory."""

    def moved(self) -> None:
        """The sandbox has another body."""

    def stepped(self) -> None:
        """A step was added to the past that is no cell."""

    def taking(self) -> tuple[Taking, str]:
        """Whether states are kept, and why they are not."""

    @property
    def can_restore(self) -> bool: ...
    async def restore_last(self, idle: bool) -> Recovered:
        """Bring back one whose REPL has ended."""

    def stop(self) -> None: ...
