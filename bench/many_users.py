"""Many users of one server at once: cells, forks and files at random, and what it does to the engine's memory."""

import random
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from ramet import Sandbox


@dataclass
class Seen:
    """Filled by all clients; the lock is theirs."""

    cell_seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    calls: int = 0
    memory_early: int = 0
    memory_at_end: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def percentile(self, percent: int) -> float:
        return statistics.quantiles(self.cell_seconds, n=100)[percent - 1]


def mixed_load(url: str, clients: int, sandboxes: int, seconds: float) -> Seen:
    """Each client has its share of the sandboxes. Everything it reads back it checks."""
    seen = Seen()
    ready = threading.Barrier(clients + 1)
    over = threading.Event()
    threads = [
        threading.Thread(target=_client, args=(url, number, sandboxes // clients, seen, ready, over))
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    time.sleep(seconds / 4)
    seen.memory_early = engine_memory_bytes()
    time.sleep(seconds * 3 / 4)
    seen.memory_at_end = engine_memory_bytes()
    over.set()
    for thread in threads:
        thread.join()
    return seen


def _client(url: str, number: int, share: int, seen: Seen, ready: threading.Barrier, over: threading.Event) -> None:
    chance = random.Random(number)
    mine = [Sandbox(url=url) for _ in range(share)]
    for position, sandbox in enumerate(mine):
        sandbox.run_code(f"who = ({number}, {position}); count = 0")
    counts = [0] * share
    ready.wait()
    while not over.is_set():
        position = chance.randrange(share)
        try:
            _one_call(mine[position], (number, position), counts, chance, seen)
        except Exception as error:
            with seen.lock:
                seen.errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
        with seen.lock:
            seen.calls += 1
    for sandbox in mine:
        sandbox.close()


def _one_call(sandbox: Sandbox, who: tuple[int, int], counts: list[int], chance: random.Random, seen: Seen) -> None:
    kind = chance.random()
    position = who[1]
    if kind < 0.75:
        started = time.perf_counter()
        result = sandbox.run_code("count += 1; print(who, count)")
        taken = time.perf_counter() - started
        counts[position] += 1
        assert result.stdout == f"{who} {counts[position]}\n", result
        with seen.lock:
            seen.cell_seconds.append(taken)
    elif kind < 0.9:
        data = chance.randbytes(chance.randrange(1, 200_000))
        sandbox.files.write("data", data)
        assert sandbox.files.read("data") == data
    else:
        with sandbox.fork(2) as children:
            for child in children:
                assert child.run_code("print(who, count)").stdout == f"{who} {counts[position]}\n"


def engine_memory_bytes() -> int:
    """Private memory of the engine that our server started: the only ramet.engine with a keeper above it."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if b"ramet.engine" in command and b"launch" not in command.split(b"\0"):
                rollup = (entry / "smaps_rollup").read_text()
        except OSError:
            continue
        else:
            if b"ramet.engine" in command and b"launch" not in command.split(b"\0"):
                total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_")) * 1024
    return total
