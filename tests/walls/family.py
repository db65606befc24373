"""The processes below one, as the host sees them."""

from __future__ import annotations

from pathlib import Path

from tests.processes import descendants


def stat_fields(pid: int) -> list[str]:
    """What follows the name in /proc/PID/stat: state, parent, ...; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def identity(pid: int) -> tuple[int, str] | None:
    """A process by number and start time, because numbers are given out again. None for a dead one."""
    fields = stat_fields(pid)
    return None if not fields or fields[0] in "ZX" else (pid, fields[19])


def below(pid: int) -> set[tuple[int, str]]:
    """A process and all its descendants."""
    return {known for one in (pid, *descendants(pid)) if (known := identity(one)) is not None}


def alive(family: frozenset[tuple[int, str]]) -> set[int]:
    return {pid for pid, started in family if identity(pid) == (pid, started)}


def engine_of(launcher: int) -> int:
    return next(pid for pid, _ in below(launcher) if stat_fields(pid)[1:2] == [str(launcher)])
