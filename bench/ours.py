"""Ramet through its public face; only the pool's counters are read from inside.

The engine is started, and the template booted, by the sample that `measure` throws away: that happens once in a
program's life.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from bench.measure import Sample, per_cell_in_a_burst
from ramet import Sandbox
from ramet.client.drivers import blocking
from ramet.client.operations import sandboxes
from ramet.transport.embedded import default_engine

# More than the engine thaws ahead: a create that finds none ready comes sooner than this.
_CREATES_AT_MOST = 60


def handed_over(then: Callable[[Sandbox], None] = lambda sandbox: None, make: Callable[[], Sandbox] = Sandbox) -> float:
    """Seconds of a create, and of what follows, that took a sandbox which the engine had thawed ahead of time."""
    before = _pool_misses()
    started = time.perf_counter()
    with make() as sandbox:
        then(sandbox)
        taken = time.perf_counter() - started
        if _pool_misses() != before:
            raise RuntimeError("no sandbox was ready: the machine is too busy to measure the hand-over of one")
    return taken


def thawed(then: Callable[[Sandbox], None] = lambda sandbox: None, make: Callable[[], Sandbox] = Sandbox) -> float:
    """Seconds of a create, and of what follows, that had to thaw the template into a pod.

    Sandboxes thawed ahead are used up first; the engine's own count tells which create found none. Only this one does
    the work that a fork does.
    """
    with ExitStack() as stack:
        for _ in range(_CREATES_AT_MOST):
            before = _pool_misses()
            started = time.perf_counter()
            sandbox = stack.enter_context(make())
            then(sandbox)
            taken = time.perf_counter() - started
            if _pool_misses() != before:
                return taken
    raise RuntimeError(f"{_CREATES_AT_MOST} creates in a row all found a sandbox ready")


def _pool_misses() -> int:
    misses = blocking.perform(default_engine(), sandboxes.facts())["pool_misses"]
    assert isinstance(misses, int)
    return misses


def first_cell(sandbox: Sandbox) -> None:
    result = sandbox.run_code("print(42)")
    assert result.stdout == "42\n", result


@contextmanager
def repeatedly(sample: Sample) -> Iterator[Sample]:
    """A contestant that needs nothing prepared but a booted template and a filled pool."""
    Sandbox().close()
    time.sleep(0.2)
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
    code = "import time\nprint(time.monotonic_ns())\ntime.sleep(0.02)"
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
