"""Hibernated sandboxes: the memory that they cost, next to sandboxes that are alive.

As a program (`python -m bench.sleepers COUNT MIB`) it measures once, with an engine of its own, and prints JSON.
"""

import json
import os
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from ramet import Sandbox

_SETTLE_SECONDS = 2.0
_SECONDS = 120


def _tree_bytes(root: int) -> int:
    """The memory of all processes below one, each page that several of them share in equal parts."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children[parent].append(int(entry.name))
    total, left = 0, list(children[root])
    while left:
        pid = left.pop()
        left += children[pid]
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it has ended, or has no memory of its own
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def _settled() -> int:
    time.sleep(_SETTLE_SECONDS)
    return _tree_bytes(os.getpid())


def measure(count: int, mib: int) -> dict[str, float]:
    """What ``count`` sandboxes add to the memory of an engine: alive and small, and hibernated with data."""
    with Sandbox() as first:
        first.run_code("1")
    base = _settled()
    with ExitStack() as stack:
        for _ in range(count):
            sandbox = stack.enter_context(Sandbox(history=False))
            code = f"import numpy as np; data = np.arange(1, ({mib} << 17) + 1, dtype=np.float64)"
            result = sandbox.run_code(code, timeout=_SECONDS)
            if not result.ok:
                raise SystemExit(result.stderr.strip())
            sandbox.hibernate()
        asleep = _settled() - base
        woken = sandbox.run_code("int(data[-1])").value
        assert woken == str(mib << 17), woken
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(Sandbox(history=False)).run_code("x = 1")
        alive = _settled() - base
    return {"asleep": max(asleep, 1), "alive": alive}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
