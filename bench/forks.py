"""Forks of live sandboxes against a raw `os.fork()` of a plain process that holds the same.

The heaps are Python source, run once as a cell and once in the plain process, so that both hold the same memory.
"""

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Sample, Unavailable
from ramet import Sandbox

_MIB = 1 << 20

# One page in 512 would do to make the kernel map all of it; ones are what a user has.
GIB_OF_NUMPY = "import numpy as np\ndata = np.ones(1 << 27)\n"
# 10 million strings of 96 bytes and the list that holds them.
TEN_MILLION_OBJECTS = "data = [f'{number:047d}' for number in range(10_000_000)]\n"
PANDAS = "import pandas as pd\ndata = pd.DataFrame({'a': range(1000)})\ntotal = data['a'].sum()\n"

_DEADLINE_SECONDS = 120
_FLAT = 16  # living ancestors, above which a sandbox goes through an image
_ASKERS = ThreadPoolExecutor(8)


def threads(count: int) -> str:
    """So many threads besides the main one, asleep on a lock."""
    return (
        "import threading\ngate = threading.Event()\n"
        f"for _ in range({count}): threading.Thread(target=gate.wait, daemon=True).start()\n"
    )


def holding(heap: str, **options: int) -> Sandbox:
    """A sandbox that holds a heap."""
    sandbox = Sandbox(memory_mib=options.get("memory_mib", 4096))
    result = sandbox.run_code(heap, timeout=_DEADLINE_SECONDS)
    if "No module named" in result.stderr:
        sandbox.close()
        raise Unavailable(result.stderr.strip().splitlines()[-1])
    assert result.ok, result
    return sandbox


def fork_until_answered(parent: Sandbox, n: int, answered: bool = True) -> float:
    """Seconds of a fork until each child has answered its first cell, all asked at once; or until it returned."""
    started = time.perf_counter()
    children = parent.fork(n)
    if answered and n == 1:
        assert children[0].run_code("6 * 7").value == "42"
    elif answered:
        assert all(result.value == "42" for result in _ASKERS.map(lambda child: child.run_code("6 * 7"), children))
    taken = time.perf_counter() - started
    for child in children:
        assert child.run_code("6 * 7").value == "42"
    for child in children:
        child.close()
    return taken


def pause_of_a_fork(parent: Sandbox) -> float:
    children = parent.fork(1)
    children[0].close()
    return children.fork_info.pause_seconds


@contextmanager
def forking(heap: str, n: int = 1, answered: bool = True) -> Iterator[Sample]:
    """A contestant with a parent of its own."""
    with holding(heap) as parent:
        yield lambda: fork_until_answered(parent, n, answered)


@contextmanager
def pausing(heap: str) -> Iterator[Sample]:
    with holding(heap) as parent:
        yield lambda: pause_of_a_fork(parent)


@contextmanager
def forking_generation(heap: str, generation: int, ancestors_alive: bool) -> Iterator[Sample]:
    """Forks the last one of a chain of forks of forks."""
    with ExitStack() as stack:
        current = stack.enter_context(holding(heap))
        for _ in range(generation - 1):
            (child,) = current.fork(1)
            stack.callback(child.close)
            child.run_code("generation = 1")
            if not ancestors_alive:
                current.close()
            current = child
        if ancestors_alive:
            fork_until_answered(current, 1)  # one that is forked is made ready for the next time
            _wait_until_flat(current)
        yield lambda: fork_until_answered(current, 1)


def _wait_until_flat(sandbox: Sandbox) -> None:
    """Until it has lost its ancestors, or will not."""
    end = time.monotonic() + _DEADLINE_SECONDS
    while sandbox.info().usage.get("ancestors", 0) > _FLAT and time.monotonic() < end:
        time.sleep(0.1)


@contextmanager
def restoring(heap: str) -> Iterator[Sample]:
    with holding(heap) as sandbox, sandbox.snapshot() as snapshot:

        def sample() -> float:
            started = time.perf_counter()
            sandbox.restore(snapshot)
            assert sandbox.run_code("6 * 7").value == "42"
            return time.perf_counter() - started

        yield sample


@dataclass(frozen=True)
class Crowd:
    median_bytes: float
    largest_bytes: float
    seconds: float


def memory_of_children(heap: str, count: int) -> Crowd:
    """What `count` children of one parent take each, all alive and each after one cell: private pages, page tables."""
    with holding(heap) as parent, ExitStack() as stack:
        started = time.perf_counter()
        children = [stack.enter_context(child) for child in parent.fork(count)]
        taken = time.perf_counter() - started
        for child in children:
            assert child.run_code("6 * 7").value == "42"
        unique = []
        for child in children:
            usage = child.info().usage
            unique.append(usage["private_bytes"] + usage["page_table_bytes"])
    return Crowd(statistics.median(unique), max(unique), taken)


@dataclass(frozen=True)
class Copied:
    told_bytes: int
    grown_bytes: int
    seconds: float


def files_of_children(write: str, check: str, n: int) -> Copied:
    """What is copied when a parent that wrote files is forked: as it is told, and by how much the host's tmpfs grew."""
    with holding(write) as parent:
        before = _memory_of_files()
        started = time.perf_counter()
        children = parent.fork(n)
        taken = time.perf_counter() - started
        grown = _memory_of_files() - before
        try:
            for child in children:
                assert child.run_code(check).value == "True"
        finally:
            for child in children:
                child.close()
        return Copied(children.fork_info.file_bytes_copied, grown, taken)


def _memory_of_files() -> int:
    """Bytes of all tmpfs of the host together (proc_meminfo(5)): the writable layers of pods are such."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))


LARGE_FILE_BYTES = 100 * _MIB
LARGE_FILE = "import os\nwith open('/root/large', 'wb') as file: _ = file.write(os.urandom(1 << 20) * 100)\n"
LARGE_FILE_IS_THERE = "os.path.getsize('/root/large') == 100 << 20"
SMALL_FILES_BYTES = 10_000 * 2000
SMALL_FILES = (
    "import os\nos.mkdir('/root/many')\n"
    "for number in range(10_000):\n    with open(f'/root/many/{number}', 'wb') as file: _ = file.write(bytes(2000))\n"
)
SMALL_FILES_ARE_THERE = "len(os.listdir('/root/many')) == 10_000"
