"""Many sandboxes at once: what each costs in memory, and whether their number slows the next one down."""

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass

from bench.measure import Unavailable
from bench.ours import thawed
from ramet import Sandbox

_PANDAS_CELL = """
import pandas as pd
frame = pd.DataFrame({'month': [1, 1, 2], 'revenue': [10, 20, 5]})
print(frame.groupby('month')['revenue'].sum())
"""


@dataclass(frozen=True)
class Memory:
    count: int
    median_bytes: float
    largest_bytes: int


def memory_of_each(count: int) -> Memory:
    """Unique memory of each of `count` live sandboxes after one pandas cell: private pages and page tables.

    All are read while all are alive: a page is private only as long as no other sandbox shares it.
    """
    with ExitStack() as stack:
        sandboxes: list[Sandbox] = []
        for _ in range(count):
            sandbox = stack.enter_context(Sandbox("python-datasci"))
            result = sandbox.run_code(_PANDAS_CELL)
            if "No module named" in result.stderr:
                raise Unavailable("pandas is not installed")
            assert result.ok, result
            sandboxes.append(sandbox)
        unique: list[int] = []
        for sandbox in sandboxes:
            usage = sandbox.info().usage
            if "private_bytes" not in usage or "page_table_bytes" not in usage:
                raise Unavailable("info().usage has no private_bytes and page_table_bytes")
            unique.append(usage["private_bytes"] + usage["page_table_bytes"])
    return Memory(count, statistics.median(unique), max(unique))


def create_among(alive_counts: list[int], samples: int, settle_seconds: float) -> dict[int, float]:
    """Median seconds of a create that thaws while so many sandboxes are alive, by their number."""
    medians: dict[int, float] = {}
    with ExitStack() as stack:
        alive = 0
        for wanted in alive_counts:
            while alive < wanted:
                stack.enter_context(Sandbox()).run_code("x = 1")
                alive += 1
            taken: list[float] = []
            for _ in range(samples):
                time.sleep(settle_seconds)
                taken.append(thawed())
            medians[wanted] = statistics.median(taken)
    return medians
