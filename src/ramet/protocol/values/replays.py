"""The kept output of a sandbox, with the cells it belongs to."""

from __future__ import annotations

from typing import Literal

from ramet.protocol.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplayEvent:
    """A piece of text that a cell printed, or the end of a cell."""

    type: Literal["stdout", "stderr", "exit"]
    data: str  # empty at the end of a cell
    code: int | None  # the exit code of a cell that ended
    execution: str  # the id of the cell, empty if it had none
    time_seconds: float  # since the epoch
