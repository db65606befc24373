"""Takes samples of several contestants in turn, in shuffled order, so that the machine's moods hit all alike."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

Sample = Callable[[], float]
"""Does the thing once; how long it took, in seconds."""

CELLS_IN_A_BURST = 10


def per_cell_in_a_burst(run_one: Callable[[], None]) -> float:
    """Seconds per run of several in a row: a warm cell is one that follows another, with all caches still filled."""
    started = time.perf_counter()
    for _ in range(CELLS_IN_A_BURST):
        run_one()
    return (time.perf_counter() - started) / CELLS_IN_A_BURST


class Unavailable(Exception):
    """A baseline that this machine does not have; the message says what is missing."""


@dataclass(frozen=True)
class Contestant:
    """`prepare` gives what takes one sample; `share` 0.25 means to take part in one round of four."""

    name: str
    prepare: Callable[[], AbstractContextManager[Sample]]
    share: float = 1.0


@dataclass(frozen=True)
class Samples:
    seconds: tuple[float, ...]
    unavailable: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


def measure(
    contestants: Sequence[Contestant], rounds: int, shuffle: random.Random, settle_seconds: float = 0.02
) -> dict[str, Samples]:
    """Samples by the contestant's name. Before each one the machine gets a moment to finish what the last one left.

    Without that moment a contestant would pay for its predecessor: pods being made for the pool, kernels being torn
    down. The first sample of each is thrown away: it pays for imports, caches and lazily made state.
    """
    taken: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    missing: dict[str, str] = {}
    ready: dict[str, Sample] = {}
    with ExitStack() as stack:
        for contestant in contestants:
            try:
                ready[contestant.name] = stack.enter_context(contestant.prepare())
                ready[contestant.name]()
            except Unavailable as error:
                missing[contestant.name] = str(error)
        for number in range(rounds):
            due = [each for each in contestants if each.name not in missing and _is_due(number, each.share)]
            shuffle.shuffle(due)
            for contestant in due:
                gc.collect()
                time.sleep(settle_seconds)
                taken[contestant.name].append(ready[contestant.name]())
    return {name: Samples(tuple(seconds), missing.get(name)) for name, seconds in taken.items()}


def _is_due(number: int, share: float) -> bool:
    """True in `share` of all rounds, evenly spread, the first one included."""
    return number == 0 or int(number * share) > int((number - 1) * share)
