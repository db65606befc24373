"""A selector that polls for a moment before it sleeps, while an answer is expected.

To wake an idle processor takes tens of microseconds on virtual machines, and a short cell is answered in about a
hundred: an engine that slept in between would add half of that again. So for a moment after a cell was sent to a guest,
and after it ended (the next one often follows at once), the engine polls, and yields the processor between two polls.
The moment is short and ends by itself: an engine with nothing to do sleeps.
"""

from __future__ import annotations

import os
import selectors
from time import perf_counter

_MOMENT_SECONDS = 0.0002
# With a single processor, polling would keep the guest from running.
_WORTH_IT = len(os.sched_getaffinity(0)) > 1

_until = 0.0


def expect_message() -> None:
    """Poll for the next moment, because a message will probably arrive."""
    global _until
    _until = perf_counter() + _MOMENT_SECONDS


class BusySelector(selectors.EpollSelector):
    """The selector of the engine's event loop."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if _WORTH_IT and (timeout is None or timeout > 0):
            while perf_counter() < _until:
                if ready := super().select(0):
                    return ready
                os.sched_yield()
        return super().select(timeout)
