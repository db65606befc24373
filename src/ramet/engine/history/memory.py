"""Reads what frozen processes take of the machine's memory. Runs in a thread: the kernel walks their page tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

from ramet.isolation.kernel import cgroups


def machine_memory_bytes() -> int:
    """All that the host has, or a container or service that we are in, if that is less."""
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(host_bytes, cgroups.memory_limit() or host_bytes)


def own_memory(pids: Iterable[int]) -> Mapping[int, int]:
    """Memory that no other process shares, with page tables, of each process that still lives."""
    found: dict[int, int] = {}
    for pid in pids:
        with suppress(OSError, ValueError):
            private = _sum(f"/proc/{pid}/smaps_rollup", "Private_")
            tables = _sum(f"/proc/{pid}/status", "VmPTE:")
            if tables:  # a process that is ending has none any more
                found[pid] = private + tables
    return found


def _sum(path: str, field: str) -> int:
    with open(path, encoding="ascii", errors="replace") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def without_memory(pids: Iterable[int]) -> set[int]:
    """Those that have ended, or are ending. Cheap: no page table is walked."""
    found: set[int] = set()
    for pid in pids:
        try:
            if not resident_bytes(pid):
                found.add(pid)
        except OSError:
            found.add(pid)
    return found


def resident_bytes(pid: int) -> int:
    """All pages of a process, shared or not. Raises OSError if it has ended."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
