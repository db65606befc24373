"""What an engine owns on the host, counted to see what is left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from ramet import Sandbox
from ramet.transport import embedded
from tests.lifetime.programs import groups_of
from tests.walls.family import below, engine_of

_STEADY_LOOKS = 12
# Longer than the pool keeps what a fork of many may ask for again: a minute, looked at four times a minute.
_WAIT_SECONDS = 120


@dataclass(frozen=True)
class Belongings:
    processes: int
    descriptors: int
    groups: int
    mounts: int
    memory_bytes: int

    def exceeds(self, before: Belongings, allowed: Belongings) -> dict[str, tuple[int, int]]:
        """What there is more of than before, beyond what is allowed: by name, before and now."""
        return {
            field.name: (getattr(before, field.name), getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) > getattr(before, field.name) + getattr(allowed, field.name)
        }


# Pods of the pool come and go behind our back, each with a few of everything; the engine's allocator breathes.
POOL = Belongings(processes=12, descriptors=40, groups=12, mounts=8, memory_bytes=48 << 20)


def look() -> Belongings:
    """What the engine of this process owns now."""
    launcher = embedded.default_engine().pid
    engine = engine_of(launcher)
    family = below(engine)
    return Belongings(
        processes=len(family),
        descriptors=len(os.listdir(f"/proc/{engine}/fd")),
        groups=sum(len([*Path(group).rglob("cgroup.procs")]) for group in groups_of(os.getpid())),
        mounts=max((_mounts(pid) for pid, _ in family), default=0),
        memory_bytes=_resident(engine),
    )


def at_rest() -> Belongings:
    """What the engine owns once its pool has refilled itself: several looks in a row show the same processes."""
    counts: list[int] = []
    end = time.monotonic() + _WAIT_SECONDS
    while True:
        seen = look()
        counts.append(seen.processes)
        if len(counts) >= _STEADY_LOOKS and len(set(counts[-_STEADY_LOOKS:])) == 1:
            return seen
        assert time.monotonic() < end, f"the engine does not come to rest: {counts[-20:]} processes"
        time.sleep(0.02)


def wait_until_no_more_than(before: Belongings, allowed: Belongings = POOL) -> None:
    """Closed sandboxes are taken down in the background: waits, bounded, until nothing of them is left."""
    end = time.monotonic() + _WAIT_SECONDS
    while excess := look().exceeds(before, allowed):
        assert time.monotonic() < end, f"left behind (before, now): {excess}"
        time.sleep(0.05)


def assert_leaves_nothing(action: Callable[[], object], allowed: Belongings = POOL) -> None:
    # An engine that was never asked for a sandbox has no template and no pool yet, and rests without them.
    Sandbox().close()
    before = at_rest()
    action()
    wait_until_no_more_than(before, allowed)


def _mounts(pid: int) -> int:
    try:
        return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    except OSError:
        return 0  # gone, or hidden from an ordinary user


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
