"""What is measured of forks: each scenario is a function from the run's settings to rows."""

from bench import forks
from bench.measure import Contestant, Samples, Unavailable, measure
from bench.plain_fork import plain_fork_holding
from bench.settings import AGAIN, Settings, row
from bench.table import Row

_LARGE = forks.GIB_OF_NUMPY + forks.threads(5)
_RAW = "os.fork() of a plain process, same heap"
# A closed child gives back its page tables and its pod meanwhile; a raw fork's child is waited for.
_SETTLE_SECONDS = 0.1


def _measured(contestants: list[Contestant], rounds: int, settings: Settings) -> dict[str, Samples]:
    return measure(contestants, settings.rounds(rounds), settings.shuffle, settle_seconds=_SETTLE_SECONDS)


def fork_large(settings: Settings) -> list[Row]:
    """1 GiB in numpy and five threads: one child, the parent's pause, eight children."""
    samples = _measured(
        [
            Contestant("one", lambda: forks.forking(_LARGE)),
            Contestant("again", lambda: forks.forking(_LARGE)),
            Contestant("pause", lambda: forks.pausing(_LARGE)),
            Contestant("eight", lambda: forks.forking(_LARGE, 8, answered=False)),
            Contestant("eight answered", lambda: forks.forking(_LARGE, 8)),
            Contestant("raw", lambda: plain_fork_holding(_LARGE)),
        ],
        40,
        settings,
    )
    scenario = "fork(1) + first cell, 1 GiB in numpy, 5 threads"
    return [
        row(scenario, samples, "again", AGAIN, ours_is="one"),
        row(scenario, samples, "raw", _RAW, 2.5, ours_is="one"),
        row("pause of the parent in it", samples, "raw", _RAW, 1.6, ours_is="pause"),
        row("fork(8) of it, until all can take a cell", samples, "raw", "one " + _RAW, 10, ours_is="eight"),
        row("the same and a first cell in each, at once", samples, "raw", "one " + _RAW, ours_is="eight answered"),
    ]


def fork_objects(settings: Settings) -> list[Row]:
    heap = forks.TEN_MILLION_OBJECTS + forks.threads(5)
    samples = _measured(
        [
            Contestant("ours", lambda: forks.forking(heap)),
            Contestant("pause", lambda: forks.pausing(heap)),
            Contestant("raw", lambda: plain_fork_holding(heap)),
        ],
        24,
        settings,
    )
    scenario = "fork(1) + first cell, 10 million small objects"
    return [
        row(scenario, samples, "raw", _RAW, 1.6),
        row("pause of the parent in it", samples, "raw", _RAW, ours_is="pause"),
    ]


def fork_small(settings: Settings) -> list[Row]:
    samples = _measured(
        [
            Contestant("ours", lambda: forks.forking(forks.PANDAS)),
            Contestant("again", lambda: forks.forking(forks.PANDAS)),
            Contestant("raw", lambda: plain_fork_holding(forks.PANDAS)),
        ],
        80,
        settings,
    )
    scenario = "fork(1) + first cell, pandas loaded, little data"
    return [
        row(scenario, samples, "again", AGAIN),
        row(scenario, samples, "raw", _RAW, 2.5),
    ]


def fork_threads(settings: Settings) -> list[Row]:
    samples = _measured(
        [
            Contestant("many", lambda: forks.forking(forks.GIB_OF_NUMPY + forks.threads(64))),
            Contestant("few", lambda: forks.forking(_LARGE)),
        ],
        40,
        settings,
    )
    return [row("fork(1) + first cell, 64 threads", samples, "few", "the same with 5 threads", 3, ours_is="many")]


def fork_generations(settings: Settings) -> list[Row]:
    generation = 32 if settings.quick else 100
    heap = forks.PANDAS + forks.threads(5)  # many mappings: each has its list of ancestors
    samples = _measured(
        [
            Contestant("first", lambda: forks.forking(heap)),
            Contestant("closed", lambda: forks.forking_generation(heap, generation, ancestors_alive=False)),
            Contestant("alive", lambda: forks.forking_generation(heap, generation, ancestors_alive=True)),
        ],
        32,
        settings,
    )
    scenario = f"fork(1) + first cell, generation {generation}"
    return [
        row(f"{scenario}, ancestors closed", samples, "first", "generation 1", 1.5, ours_is="closed"),
        row(f"{scenario}, ancestors alive", samples, "first", "generation 1", 2, ours_is="alive"),
    ]


def fork_memory(settings: Settings) -> list[Row]:
    count = 20 if settings.quick else 100
    scenario = f"unique memory each, {count} children of 1 GiB, one cell"
    try:
        crowd = forks.memory_of_children(_LARGE, count)
    except Unavailable as error:
        return [Row(scenario, "", "bytes", note=str(error))]
    return [
        Row(scenario, "", "bytes", ours=crowd.median_bytes, target=5e6),
        Row(f"the same, largest of {count}", "", "bytes", ours=crowd.largest_bytes, target=5e6),
        Row(f"fork({count}) of it", "", "seconds", ours=crowd.seconds),
    ]


def fork_files(settings: Settings) -> list[Row]:
    rows = []
    for what, write, check, written in (
        ("one file of 100 MiB", forks.LARGE_FILE, forks.LARGE_FILE_IS_THERE, forks.LARGE_FILE_BYTES),
        ("10 000 files of 2 kB", forks.SMALL_FILES, forks.SMALL_FILES_ARE_THERE, forks.SMALL_FILES_BYTES),
    ):
        copied = forks.files_of_children(write, check, 4)
        against = "all that the parent wrote, once"
        rows += [
            Row(f"fork(4), {what}: bytes copied", against, "bytes", copied.told_bytes, written, 1.05),
            # A file takes whole pages, and a folder and an inode have their price: twice is still once.
            Row(f"fork(4), {what}: growth of tmpfs", against, "bytes", copied.grown_bytes, written, 2.2),
            Row(f"fork(4), {what}", "", "seconds", ours=copied.seconds),
        ]
    return rows


def restore(settings: Settings) -> list[Row]:
    samples = _measured(
        [
            Contestant("restore", lambda: forks.restoring(_LARGE)),
            Contestant("fork", lambda: forks.forking(_LARGE)),
        ],
        40,
        settings,
    )
    return [row("restore(snapshot) + first cell, 1 GiB", samples, "fork", "fork(1) + first cell", 2, ours_is="restore")]
