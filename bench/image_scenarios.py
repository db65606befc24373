"""Images on disk: engines that pour their template, saved snapshots that are loaded, and writing them."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from bench import images
from bench.measure import Contestant, Sample, Unavailable, measure
from bench.settings import AGAIN, Settings, row
from bench.table import Row

# Seconds from the start of the engine to the end of the first cell. A program of its own, because an engine keeps its
# templates.
_PROGRAM = """
import sys, time
from ramet import Sandbox
began = time.perf_counter()
with Sandbox(sys.argv[1]) as sandbox:
    sandbox.run_code("6 * 7")
    print(time.perf_counter() - began)
"""


@contextmanager
def _start(template: str, images: bool) -> Iterator[Sample]:
    with tempfile.TemporaryDirectory() as cache:
        variables = {**os.environ, "XDG_CACHE_HOME": cache, "RAMET_IMAGES": "on" if images else "off"}

        def sample() -> float:
            command = [sys.executable, "-c", _PROGRAM, template]
            return float(subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout)

        yield sample  # the first one writes the image, and is thrown away


def _rows(settings: Settings, template: str, target: float) -> list[Row]:
    samples = measure(
        [
            Contestant("ours", lambda: _start(template, images=True)),
            Contestant("again", lambda: _start(template, images=True)),
            Contestant("import", lambda: _start(template, images=False)),
        ],
        settings.rounds(40),
        settings.shuffle,
    )
    scenario = f"engine start to first cell, {template}, from its image"
    return [row(scenario, samples, "again", AGAIN), row(scenario, samples, "import", "the same by import", target)]


def template_image(settings: Settings) -> list[Row]:
    return [*_rows(settings, "python-datasci", 0.2), *_rows(settings, "default", 0.4)]


_FORK = "fork(1) + first cell of what was loaded"
_SIZES_MIB = (100, 1024, 4096)


def image_load(settings: Settings) -> list[Row]:
    """Saved snapshots of three sizes. Each sample has an engine of its own, and the sizes take turns."""
    sizes = _SIZES_MIB[:2] if settings.quick else _SIZES_MIB
    with images.store() as store:
        try:
            for mib in sizes:
                store.sample("save", mib)
            samples: dict[int, list[dict[str, float]]] = {mib: [] for mib in sizes}
            for _ in range(3 if settings.quick else 12):
                for mib in settings.shuffle.sample(sizes, len(sizes)):
                    samples[mib].append(store.sample("load", mib))
        except Unavailable as error:
            return [Row("image to first cell", "", "seconds", note=f"not measured: {error}")]
    loads, smallest, largest = samples[1024], samples[sizes[0]], samples[sizes[-1]]
    first, fork = _median(loads, "first"), _median(loads, "fork")
    odd, even = _median(loads[::2], "first"), _median(loads[1::2], "first")
    scenario = "1 GiB image, page cache warm, to first cell"
    flat = f"{sizes[-1] / 1024:g} GiB image to first cell"
    return [
        Row(scenario, AGAIN, "seconds", odd, even),
        Row(scenario, _FORK, "seconds", first, fork, 1.8),
        Row("second thaw of it", _FORK, "seconds", _median(loads, "second"), fork, 1.0),
        Row(scenario, "reading its bytes once", "seconds", first, _median(loads, "read"), 0.5),
        Row(flat, "100 MB image", "seconds", _median(largest, "first"), _median(smallest, "first"), 1.3),
    ]


def image_increment(settings: Settings) -> list[Row]:
    samples = _several("increment", 256 if settings.quick else 1024, 3 if settings.quick else 8)
    if isinstance(samples, str):
        return [Row("image of 1 % changed pages", "", "bytes", note=samples)]
    scenario, full = "image of 1 % changed pages", "the full image"
    bytes_of, seconds = _median(samples, "increment_bytes"), _median(samples, "increment_seconds")
    return [
        Row(f"{scenario}, bytes", full, "bytes", bytes_of, _median(samples, "full_bytes"), 0.05),
        Row(f"{scenario}, processor time", full, "seconds", seconds, _median(samples, "full_seconds")),
        Row(f"{scenario}, processor time", "hashing all pages once", "seconds", seconds,
            _median(samples, "hash_seconds"), 1.0),
    ]  # fmt: skip


def image_neighbours(settings: Settings) -> list[Row]:
    samples = _several("neighbour", 256 if settings.quick else 1024, 3 if settings.quick else 8)
    scenario = "cell while the image of another sandbox is written"
    if isinstance(samples, str):
        return [Row(scenario, "", "seconds", note=samples)]
    quiet = _median(samples, "quiet")
    return [
        Row("cell while none is written, later", AGAIN, "seconds", _median(samples, "again"), quiet),
        Row(scenario, "while none is written", "seconds", _median(samples, "writing"), quiet, 1.2),
    ]


def image_sleepers(settings: Settings) -> list[Row]:
    count, mib = (10, 20) if settings.quick else (100, 100)
    scenario = f"memory that {count} hibernated sandboxes of {mib} MiB add"
    with images.store() as store:
        try:
            sample = store.run("bench.sleepers", str(count), str(mib))
        except Unavailable as error:
            return [Row(scenario, "", "bytes", note=f"not measured: {error}")]
    return [Row(scenario, f"{count} small ones alive", "bytes", sample["asleep"], sample["alive"], 0.1)]


def _several(kind: str, mib: int, count: int) -> list[dict[str, float]] | str:
    """Samples, each of an engine and a store of its own; or why there are none."""
    samples = []
    for _ in range(count):
        with images.store() as store:
            try:
                samples.append(store.sample(kind, mib))
            except Unavailable as error:
                return f"not measured: {error}"
    return samples


def _median(samples: Sequence[dict[str, float]], what: str) -> float:
    return median(sample[what] for sample in samples)
