"""What is measured of the past of sandboxes: each scenario is a function from the run's settings to rows."""

from bench import forks, history
from bench.measure import Contestant, measure
from bench.settings import AGAIN, Settings, row
from bench.table import Row

_SETTLE_SECONDS = 0.1
_FORK = "fork(1) + first cell"


def pause(settings: Settings) -> list[Row]:
    heap = forks.GIB_OF_NUMPY + forks.threads(5)
    samples = measure(
        [
            Contestant("point", lambda: history.pausing(heap)),
            Contestant("fork", lambda: forks.pausing(heap)),
        ],
        settings.rounds(40),
        settings.shuffle,
        settle_seconds=_SETTLE_SECONDS,
    )
    return [row("pause for a point of the history, 1 GiB", samples, "fork", "pause of a fork", 1.3, ours_is="point")]


def undo(settings: Settings) -> list[Row]:
    samples = measure(
        [
            Contestant("last", lambda: history.undoing(forks.PANDAS, 1)),
            Contestant("fiftieth", lambda: history.undoing(forks.PANDAS, 50)),
            Contestant("fork", lambda: forks.forking(forks.PANDAS)),
        ],
        settings.rounds(40),
        settings.shuffle,
        settle_seconds=_SETTLE_SECONDS,
    )
    return [
        row("undo of the last cell + first cell, pandas loaded", samples, "fork", _FORK, 1.5, ours_is="last"),
        row("undo of the last 50 cells + first cell", samples, "fork", _FORK, 2, ours_is="fiftieth"),
    ]


def cells_in_a_row(settings: Settings) -> list[Row]:
    samples = measure(
        [
            Contestant("ours", lambda: history.cells_in_a_row(None)),
            Contestant("again", lambda: history.cells_in_a_row(None)),
            Contestant("without", lambda: history.cells_in_a_row(False)),
        ],
        settings.rounds(120),
        settings.shuffle,
        settle_seconds=0.002,
    )
    scenario = f"{history.CELLS_IN_A_ROW} cells in a row, each"
    return [
        row(scenario, samples, "again", AGAIN),
        row(scenario, samples, "without", "the same with history=False", 1.05),
    ]


def rewrite(settings: Settings) -> list[Row]:
    samples = measure(
        [
            Contestant("ours", lambda: history.rewriting(None)),
            Contestant("without", lambda: history.rewriting(False)),
        ],
        settings.rounds(24),
        settings.shuffle,
    )
    scenario = f"{history.REWRITES} cells that rewrite 1 GiB in place, with pauses"
    return [row(scenario, samples, "without", "the same with history=False", 1.15)]
