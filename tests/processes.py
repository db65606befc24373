"""Processes as they can be seen from outside. Any of them may end while it is looked at."""

from __future__ import annotations

import os
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """All that a process started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # ended meanwhile
            children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(pid, ()))
    for one in found:
        found.extend(children.get(one, ()))
    return found


def children_of(pid: int) -> list[int]:
    """Those that it started itself, or was given by one that has ended."""
    return [child for child in descendants(pid) if parent_of(child) == pid]


def parent_of(pid: int) -> int:
    """0 of a process that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command_line(pid: int) -> bytes:
    """Its arguments, each with a zero byte after it; nothing of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descriptor_count(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
