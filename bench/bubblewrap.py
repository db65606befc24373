"""Baseline: a fresh interpreter in fresh namespaces for each run, `bwrap --unshare-all ... python -c "print(42)"`."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import Sample, Unavailable


@contextmanager
def bubblewrap_run() -> Iterator[Sample]:
    program = shutil.which("bwrap")
    if program is None:
        raise Unavailable("bwrap is not installed")
    walls = ["--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    command = [program, *walls, sys.executable, "-c", "print(42)"]
    tried = subprocess.run(command, capture_output=True, text=True)
    if tried.returncode != 0:
        raise Unavailable(f"bwrap does not work here: {tried.stderr.strip()}")

    def sample() -> float:
        started = time.perf_counter()
        printed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        taken = time.perf_counter() - started
        assert printed == b"42\n", printed
        return taken

    yield sample
