"""The past of sandboxes: what keeping it costs, and how fast a sandbox goes back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import Sample, Unavailable
from ramet import Sandbox

_DEADLINE_SECONDS = 120
_PAUSE_SECONDS = 0.3  # longer than a sandbox has to be idle for a point
CELLS_IN_A_ROW = 200
REWRITES = 10
_GIB = "import numpy as np\ndata = np.ones(1 << 27)\n"
_REWRITE = "data += 1"


def _holding(heap: str, history: int | None) -> Sandbox:
    sandbox = Sandbox(history=history)
    result = sandbox.run_code(heap, timeout=_DEADLINE_SECONDS)
    if "No module named" in result.stderr:
        sandbox.close()
        raise Unavailable(result.stderr.strip().splitlines()[-1])
    assert result.ok, result
    return sandbox


@contextmanager
def pausing(heap: str) -> Iterator[Sample]:
    """The pause of a sandbox for a point of its history."""
    with _holding(heap, 3) as sandbox:

        def sample() -> float:
            sandbox.run_code("changed = 1")
            sandbox.run_code("changed = 2")  # waits until the state before it is kept
            pause = sandbox.history()[-2].pause_seconds
            assert pause is not None
            return pause

        yield sample


@contextmanager
def undoing(heap: str, cells: int) -> Iterator[Sample]:
    """Undo of the last cells and a first one after it."""
    with _holding(heap, cells + 10) as sandbox:

        def sample() -> float:
            for number in range(cells):
                sandbox.run_code(f"changed = {number}")
            started = time.perf_counter()
            sandbox.undo(cells)
            assert sandbox.run_code("6 * 7").value == "42"
            return time.perf_counter() - started

        yield sample


@contextmanager
def cells_in_a_row(history: int | None) -> Iterator[Sample]:
    """Cells that follow one another at once: seconds for each."""
    with _holding("changed = 0", history) as sandbox:

        def sample() -> float:
            started = time.perf_counter()
            for _ in range(CELLS_IN_A_ROW):
                sandbox.run_code("changed += 1")
            return (time.perf_counter() - started) / CELLS_IN_A_ROW

        yield sample


@contextmanager
def rewriting(history: int | None) -> Iterator[Sample]:
    """Cells that rewrite a gibibyte in place, with pauses between them: seconds in all, without the pauses."""
    with _holding(_GIB, history) as sandbox:

        def sample() -> float:
            taken = 0.0
            for _ in range(REWRITES):
                time.sleep(_PAUSE_SECONDS)
                started = time.perf_counter()
                assert sandbox.run_code(_REWRITE, timeout=_DEADLINE_SECONDS).ok
                taken += time.perf_counter() - started
            return taken

        yield sample
