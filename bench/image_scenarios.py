"""Images on disk: how long a program waits for its first cell when the template is poured, and when it is imported."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import Contestant, Sample, measure
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
