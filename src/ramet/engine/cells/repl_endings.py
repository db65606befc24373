"""The messages about a REPL that ended: why, what is gone with it, and what is kept.

People and models read stdout and stderr first, and many programs pass on nothing else. A loss that only the fields of a
result report would go unnoticed.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from ramet.protocol.values.results import CellError

ERROR_NAME = "PythonEnded"

_GONE = "variables, imports, threads and open files"
NO_ANSWER = "it was killed, because it did not answer in time when it was asked between two cells"
_WHYS = {
    "out of memory": "it was killed, because the sandbox had used up its memory",
    "timeout": "the deadline of the cell passed, and it had to be killed",
    "interrupt": "the cell was interrupted, and it had to be killed",
    "broken protocol": "it was killed, because it broke the protocol of its control socket (descriptor 1000)",
}


def why(cause: str, exit_code: int) -> str:
    """The cause of a death in words."""
    if cause == "exit":
        return f"it exited with code {exit_code}"
    if cause in _WHYS:
        return _WHYS[cause]
    number = exit_code - 128
    try:
        return f"signal {number} ({signal.Signals(number).name}) killed it"
    except ValueError:
        return f"signal {number} killed it"


def lost(reason: str) -> CellError:
    """The error of the cell during which the REPL ended."""
    return CellError(
        ERROR_NAME,
        f"the sandbox's Python ended: {reason}. Its {_GONE} are gone; files in the sandbox are kept. "
        "The next cell starts in a fresh Python.",
    )


def restored(reason: str, where: str, lost_cells: Sequence[int], written: bool = False) -> CellError:
    """The error of the cell during which the REPL ended, when the sandbox is back at a kept state."""
    return CellError(
        ERROR_NAME,
        f"the sandbox's Python ended: {reason}. The sandbox was restored to {where}, with its variables, threads and "
        f"files: all that this cell did in it is undone{_and_cells(lost_cells)}.{_and_written(written)}",
    )


def restored_before(reason: str, where: str, lost_cells: Sequence[int], written: bool = False) -> str:
    """The message for the next cell, when the REPL had ended between two cells."""
    return (
        f"this cell started from {where}, because the sandbox's Python had ended: {reason}. Its variables, threads and "
        f"files are as they were then{_and_cells(lost_cells)}.{_and_written(written)}"
    )


def _and_cells(lost_cells: Sequence[int]) -> str:
    """Cells whose work is missing because no later state was kept."""
    if not lost_cells:
        return ""
    first, last = min(lost_cells), max(lost_cells)
    if first == last:
        return f", and the work of cell {first} is missing, too: no later state was kept"
    return f", and the work of cells {first} to {last} is missing, too: no later state was kept"


def _and_written(written: bool) -> str:
    """What the user's own program wrote between cells, of which no cell tells."""
    return " Files and values written from outside since then are gone: write them again." if written else ""


def restarted(reason: str) -> str:
    """The message for the next cell. Its caller may not have seen the previous result, or there was none."""
    return (
        f"this cell started in a fresh Python, because the one before had ended: {reason}. "
        f"Its {_GONE} are gone; files in the sandbox are kept."
    )


def as_output(sentence: str) -> str:
    """The message as a line of stderr."""
    return f"ramet: {sentence}\n"
