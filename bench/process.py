"""A baseline that lives in a process of its own and takes one sample for each line it is sent."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import Sample


@contextmanager
def sampling_process(module: str, *arguments: str) -> Iterator[Sample]:
    """Runs `python -m MODULE ARGUMENTS`; that program answers each line on stdin with a number of seconds on stdout."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to_process, from_process = process.stdin, process.stdout

        def sample() -> float:
            to_process.write("\n")
            to_process.flush()
            answer = from_process.readline()
            if not answer:
                raise RuntimeError(f"python -m {module} ended with code {process.wait()} instead of answering")
            return float(answer)

        # Leaving the block closes its stdin, at which the program ends, and waits for that.
        yield sample
