"""The price of a point for its sandbox, and whether that is too much.

A point is taken while the sandbox thinks, so taking it costs nobody anything. But it shares its memory with the
sandbox: each page that a cell writes to afterwards must be copied by the kernel first. For a sandbox that rewrites
large arrays this makes the next cell several times slower. So it gets a point only rarely, until one has shown how much
is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable

_COPY_SECONDS_PER_BYTE = 1.25 / 2**30  # measured, 4 KiB at a time
_UNSEEN_SECONDS = 0.02  # of copying that nobody notices
_UNTRIED_BYTES = 128 * 2**20  # of memory, up to which a first point is tried at once
_WAITING_SECONDS_AT_MOST = 0.05
_PATIENCE_SECONDS_AT_MOST = 10.0
_TAKING_SECONDS = 0.005  # a guess until the first point was taken
_MIB = 2**20


class Expense:
    """The account of one sandbox, in which unused time adds up.

    A share of the time that its cells ran may be spent on points that the next cell waits for, and a share of all time
    on copying.
    """

    def __init__(self, share: float, before_cells: int, clock: Callable[[], float]) -> None:
        self._share = share
        self._free = before_cells
        self._clock = clock
        self._earned_at = clock()
        self._waiting_seconds = 0.0  # that cells may wait for points to be taken
        self._patience_seconds = 0.0  # that cells may be slower because a point is there
        self._taking_seconds = _TAKING_SECONDS
        # The part of the memory that was rewritten after the last points, None if not known, and of how much memory.
        self._rewritten: float | None = None
        self._seen_bytes = 0

    # Points that the next cell waits for

    @property
    def may_wait(self) -> bool:
        if self._free > 0:
            return True
        return self._waiting_seconds >= 1.5 * self._taking_seconds  # with the copying that follows

    def ran(self, seconds: float) -> None:
        """A cell has ended."""
        self._waiting_seconds = min(self._waiting_seconds + self._share * seconds, _WAITING_SECONDS_AT_MOST)

    def waited(self) -> None:
        if self._free > 0:
            self._free -= 1
        else:
            self._waiting_seconds -= 1.5 * self._taking_seconds

    def took(self, seconds: float) -> None:
        self._taking_seconds = (self._taking_seconds + seconds) / 2

    # Copying that points cause

    def refusal(self, memory_bytes: int, file_bytes: int, patient: bool = True) -> str:
        """Why a point would be too dear, or an empty string. ``patient``: spend what was saved for it."""
        share = self._rewritten
        if share is None and memory_bytes + file_bytes <= _UNTRIED_BYTES:
            return ""
        # What was not there then may all be rewritten, beyond a little.
        seen = min(memory_bytes, self._seen_bytes)
        unseen = max(memory_bytes - seen - _UNTRIED_BYTES, 0)
        rewritten_bytes = memory_bytes if share is None else int(seen * share) + unseen
        seconds = _COPY_SECONDS_PER_BYTE * (rewritten_bytes + file_bytes)
        if seconds <= _UNSEEN_SECONDS:
            return ""
        self._earn()
        if patient and self._patience_seconds >= seconds:
            self._patience_seconds -= seconds
            return ""
        if file_bytes > memory_bytes:
            return f"it has {file_bytes // _MIB} MiB of files, which each point would copy"
        if share is None or unseen:
            return f"it has {memory_bytes // _MIB} MiB of memory, and a cell that rewrites much of it would be slower"
        return f"its cells rewrite about {rewritten_bytes // _MIB} MiB of memory, which a point makes slower"

    def wrote(self, rewritten_bytes: int, memory_bytes: int) -> None:
        """This much of the memory that a point was taken of was rewritten since."""
        share = min(1.0, rewritten_bytes / max(memory_bytes, 1))
        self._seen_bytes = memory_bytes
        self._rewritten = share if self._rewritten is None else max(share, self._rewritten / 2)

    def _earn(self) -> None:
        now = self._clock()
        earned, self._earned_at = self._share * (now - self._earned_at), now
        self._patience_seconds = min(self._patience_seconds + earned, _PATIENCE_SECONDS_AT_MOST)
