"""Ramet through its public face.

The engine is started, and the template booted, by the sample that `measure` throws away: that happens once in a
program's life.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import Sample, per_cell_in_a_burst
from ramet import Sandbox


@contextmanager
def create_and_first_cell() -> Iterator[Sample]:
    def sample() -> float:
        started = time.perf_counter()
        sandbox = Sandbox()
        result = sandbox.run_code("print(42)")
        taken = time.perf_counter() - started
        sandbox.close()
        assert result.stdout == "42\n", result
        return taken

    yield sample


@contextmanager
def create_alone() -> Iterator[Sample]:
    def sample() -> float:
        started = time.perf_counter()
        sandbox = Sandbox()
        taken = time.perf_counter() - started
        sandbox.close()
        return taken

    yield sample


@contextmanager
def close_alone() -> Iterator[Sample]:
    def sample() -> float:
        sandbox = Sandbox()
        sandbox.run_code("print(42)")
        started = time.perf_counter()
        sandbox.close()
        return time.perf_counter() - started

    yield sample


@contextmanager
def warm_cell() -> Iterator[Sample]:
    with Sandbox() as sandbox:

        def run_one() -> None:
            result = sandbox.run_code("print(6*7)")
            assert result.stdout == "42\n", result

        yield lambda: per_cell_in_a_burst(run_one)


@contextmanager
def print_to_event() -> Iterator[Sample]:
    """From just before `print` in the sandbox to the event in the caller: both read the machine's monotonic clock."""
    # The sleep keeps the cell alive, so that the event is one of a running cell and not of its end.
    # Nothing at the end of the line: `print` writes that apart, and it would be an event of its own.
    code = "import time\nprint(time.monotonic_ns(), end='')\ntime.sleep(0.02)"
    with Sandbox() as sandbox:

        def sample() -> float:
            taken: list[int] = []
            for event in sandbox.run_code_stream(code):
                if event.type == "stdout":
                    taken.append(time.monotonic_ns() - int(event.data))
            return taken[0] / 1e9

        yield sample


def modules_of_a_sandbox() -> list[str]:
    """What the default template has imported, in the order in which it did."""
    with Sandbox() as sandbox:
        listed = sandbox.run_code("import sys\nprint(*[name for name in sys.modules if name != '__main__'], sep='\\n')")
    return [name for name in listed.stdout.split() if not name.startswith("ramet_guest")]
