"""The table of README.md: a few rows of the whole, as Markdown, and the machine on which they were measured."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from bench.table import Row, as_figure

# A row is named by what is measured and what it is compared with, because several rows measure the same thing.
_ROWS = (
    ("first-cell", "create + first cell, thaws", "ipykernel, start + first cell"),
    ("first-cell", "create + first cell, thawed ahead", "ipykernel, start + first cell"),
    ("warm-cell", "warm print(6*7) cell", "ipykernel"),
    ("fork", "fork(1) + first cell, 1 GiB in numpy, 5 threads", "os.fork() of a plain process, same heap"),
    ("fork", "pause of the parent in it", "os.fork() of a plain process, same heap"),
)
SCENARIOS = tuple(dict.fromkeys(scenario for scenario, _, _ in _ROWS))


def as_markdown(rows: Sequence[Row]) -> str:
    """The rows of README.md out of all that its scenarios gave. One is missing if its scenario failed."""
    lines = [("measured", "Ramet", "compared with", "it takes", "ratio")]
    for _, scenario, against in _ROWS:
        found = [row for row in rows if (row.scenario, row.against) == (scenario, against)]
        for row in found:
            ratio = row.note or (f"{row.ratio:.2g}" if row.ratio is not None else "")
            lines.append((scenario, as_figure(row.ours, row.unit), against, as_figure(row.theirs, row.unit), ratio))
    drawn = [f"| {' | '.join(line)} |" for line in lines]
    drawn.insert(1, "|---" * len(lines[0]) + "|")
    return "\n".join(drawn)


def machine() -> str:
    """One line that says where the figures come from."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} cores of {model}, Linux {platform.release()}, Python {platform.python_version()}"
