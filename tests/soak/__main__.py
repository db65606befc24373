"""`make soak`: random sequences of everything for minutes, then a look at what is left behind.

python -m tests.soak [--minutes 5] [--seed N]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict

from hypothesis import HealthCheck, seed, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.stateful import run_state_machine_as_test

from ramet import Sandbox, close_engine
from tests.fork.belongings import POOL, Belongings, at_rest, wait_until_no_more_than
from tests.fork.model import Sandboxes
from tests.fork.relatives import at_once, run

_STEPS = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=None, help="of the first sequence, as a failed run has printed it")
    chosen = parser.parse_args()
    first = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    end = time.monotonic() + chosen.minutes * 60

    with tempfile.TemporaryDirectory() as home:
        set_hypothesis_home_dir(home)
        a_warm_engine()
        before = at_rest()
        tell("before", before)
        number = 0
        while time.monotonic() < end or number == 0:
            print(f"sequence {number}, --seed {first + number}", flush=True)
            random_sequences(first + number)
            a_large_family(256 if number == 0 else 40)
            wait_until_no_more_than(before)
            tell("at rest", at_rest())
            number += 1
        wait_until_no_more_than(before)
    print(f"{number} rounds, nothing left behind")
    close_engine()
    return 0


def a_warm_engine() -> None:
    """What is made once and kept belongs to the engine and is no leak."""
    for _ in range(3):
        random_sequences(1, examples=2)


def random_sequences(number: int, examples: int = 10) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=_STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(Sandboxes), settings=chosen)


def a_large_family(n: int) -> None:
    """As many children as may be asked for in one go, all of them alive and at work."""
    with Sandbox() as parent, ExitStack() as stack:
        run(parent, "kept = 42; import threading; gate = threading.Event(); threading.Thread(target=gate.wait).start()")
        children = [stack.enter_context(child) for child in parent.fork(n)]
        for some in range(0, n, 16):
            assert at_once(children[some : some + 16], "gate.set(); kept") == [42] * len(children[some : some + 16])


def tell(when: str, seen: Belongings) -> None:
    excess = ", ".join(f"{name} {figure}" for name, figure in asdict(seen).items())
    print(f"  {when}: {excess} (may grow by {POOL.processes} processes of the pool)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
