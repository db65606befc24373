"""Calls of a tool from inside a sandbox, and the cells they are compared with."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from bench.measure import Sample, per_cell_in_a_burst
from bench.process import sampling_process
from bench.socket_pair import ANSWER
from ramet import Sandbox

CALLS_IN_A_CELL = 1000


def lookup(sku: str) -> dict[str, object]:
    """Sales of a product."""
    assert sku == "ABC123"
    return ANSWER["value"]  # type: ignore[return-value]


@contextmanager
def cell(code: str) -> Iterator[Sample]:
    """A warm cell of a sandbox that has a tool."""
    with Sandbox(tools=[lookup]) as sandbox:

        def run_one() -> None:
            result = sandbox.run_code(code)
            assert result.ok, result

        yield lambda: per_cell_in_a_burst(run_one)


@contextmanager
def many_calls() -> Iterator[Sample]:
    """So many calls in one cell, one after the other."""
    with Sandbox(tools=[lookup]) as sandbox:

        def sample() -> float:
            started = time.perf_counter()
            result = sandbox.run_code(f"for _ in range({CALLS_IN_A_CELL}): row = lookup(sku='ABC123')")
            taken = time.perf_counter() - started
            assert result.ok, result
            assert len(result.tool_calls) == CALLS_IN_A_CELL
            return taken

        yield sample


def round_trips() -> AbstractContextManager[Sample]:
    return sampling_process("bench.socket_pair", str(CALLS_IN_A_CELL))
