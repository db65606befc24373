"""What is measured in processes of their own: baselines that take a sample for each line, and servers."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import Sample, Unavailable

_START_SECONDS = 60


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


@contextmanager
def announcing_program(module: str, *arguments: str) -> Iterator[str]:
    """Runs `python -m MODULE ARGUMENTS`, which prints the address that it serves; it ends with the block."""
    command = [sys.executable, "-m", module, *arguments]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert program.stdout is not None
    watchdog = threading.Timer(_START_SECONDS, program.kill)
    watchdog.start()
    try:
        url = next((word for line in program.stdout for word in line.split() if word.startswith("http://")), None)
        watchdog.cancel()
        if url is None:
            raise Unavailable(f"python -m {module} did not start")
        threading.Thread(target=program.stdout.read, daemon=True).start()
        yield url.rstrip("/")
    finally:
        watchdog.cancel()
        program.terminate()
        program.wait(_START_SECONDS)
