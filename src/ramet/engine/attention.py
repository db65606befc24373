"""A selector that keeps looking for a moment before it sleeps, while an answer is expected.

Waking a processor that has gone idle costs tens of microseconds on virtual machines, and a short cell is answered in
about a hundred: an engine that slept in between would add half of that again. So for a moment after a cell was handed
to a guest, and after it ended (the next one often follows at once), the engine looks again and again and lets others
run in between. The moment is short and ends by itself: an engine with nothing to do sleeps.
"""

from __future__ import annotations

import os
import selectors
from time import perf_counter

_MOMENT_SECONDS = 0.0002
# With one processor the others could not run while we look.
_WORTH_IT = len(os.sched_getaffinity(0)) > 1

_until = 0.0


def expect_news() -> None:
    """Something will probably come within a moment."""
    global _until
    _until = perf_counter() + _MOMENT_SECONDS


class AttentiveSelector(selectors.EpollSelector):
    """What the engine's event loop waits with."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if _WORTH_IT and (timeout is None or timeout > 0):
            while perf_counter() < _until:
                if ready := super().select(0):
                    return ready
                os.sched_yield()
        return super().select(timeout)
