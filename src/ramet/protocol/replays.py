"""The last output of a sandbox, as far as it is kept, with the cells it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ReplayEvent:
    """A piece of text that a cell printed, or that a cell ended."""

    type: Literal["stdout", "stderr", "exit"]
    data: str  # empty when a cell ended
    code: int | None  # the exit code of a cell that ended
    execution: str  # the id of the cell, empty if it had none
    time_seconds: float  # since the epoch
