"""How much is measured in a run, and how samples become rows."""

import random
from dataclasses import dataclass

from bench.measure import Samples
from bench.table import Row

AGAIN = "itself (A/A: noise of this machine)"


@dataclass(frozen=True)
class Settings:
    quick: bool
    shuffle: random.Random

    def rounds(self, full: int) -> int:
        return max(5, full // 8) if self.quick else full


def row(
    scenario: str,
    samples: dict[str, Samples],
    other: str,
    against: str,
    target: float | None = None,
    ours_is: str = "ours",
) -> Row:
    ours, theirs = samples[ours_is], samples[other]
    missing = ours.unavailable or theirs.unavailable
    return Row(
        scenario,
        against,
        "seconds",
        ours=ours.median,
        theirs=theirs.median,
        target=target,
        note=None if missing is None else f"not measured: {missing}",
    )
