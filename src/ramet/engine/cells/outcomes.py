"""The outcome of a cell, as its caller gets it."""

from __future__ import annotations

from dataclasses import replace

from ramet.engine.cells.cell import Cell, Collected
from ramet.engine.cells.repl import Ending
from ramet.engine.making.carried_state import CarriedState
from ramet.protocol.calls import Outcome


def outcome_of(cell: Cell, ending: Ending, collected: Collected, carried: CarriedState) -> Outcome:
    truncated = collected.truncated
    if truncated is not None and ending.state == "restored":
        # The files with the whole output were written before the restore, and are undone.
        truncated = replace(truncated, stdout_path=None, stderr_path=None)
    outcome = Outcome(
        cell_id=cell.cell_id,
        exit_code=ending.exit_code,
        state=ending.state,
        interrupted=ending.interrupted,
        cause=ending.cause,
        restarted=carried.restarted,
        restored=cell.restored,
        error=ending.error,
        duration_seconds=ending.duration_seconds,
        stdout=collected.stdout,
        stderr=collected.stderr,
        background=cell.background,
        rich=collected.rich,
        truncated=truncated,
    )
    if cell.tool_records is not None:
        outcome.tool_calls = cell.tool_records.encoded()
        outcome.tool_calls_dropped = cell.tool_records.dropped
    return outcome
