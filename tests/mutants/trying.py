"""What a worker does: makes an environment of its own, and tries breakages in it one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Lock
from pathlib import Path
from typing import Literal

from tests.mutants.breakage import Breakage, Stale
from tests.mutants.copies import BuildFailed, Environment
from tests.mutants.running import Run, adopt_orphans, run_tests

Verdict = Literal["caught", "caught (hung)", "survived", "skipped", "error"]

_BROKEN_SECONDS = 60.0  # a test that waits for longer hangs
_WHOLE_SECONDS = 300.0
_SHOWN_CHARACTERS = 2000
_environment: Environment


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one breakage."""

    breakage: Breakage
    verdict: Verdict
    told: str
    seconds: float

    @property
    def caught(self) -> bool:
        return self.verdict in ("caught", "caught (hung)")


def prepare(folder: Path, turn: Lock) -> None:
    """To be called once, when the process begins. Its environment is in `folder`."""
    global _environment
    adopt_orphans()
    _environment = Environment(folder / str(os.getpid()))
    with turn:  # two who read the same 50 000 names at once are slower than one after the other
        _environment.make()


def run_whole(tests: Sequence[str]) -> Run:
    """The tests with nothing broken."""
    return run_tests(_environment, tests, _WHOLE_SECONDS)


def try_breakage(breakage: Breakage) -> Outcome:
    began = time.monotonic()
    try:
        with _environment.broken(breakage):
            verdict, told = _judged(run_tests(_environment, breakage.tests, _BROKEN_SECONDS, "-x"))
    except (Stale, BuildFailed) as problem:
        verdict, told = "error", str(problem)
    return Outcome(breakage, verdict, told, time.monotonic() - began)


def _judged(run: Run) -> tuple[Verdict, str]:
    if run.hung:
        return "caught (hung)", f"after {_BROKEN_SECONDS:.0f} seconds"
    if run.problem is not None:
        return "error", f"{run.problem}\n{run.output.strip()[-_SHOWN_CHARACTERS:]}"
    if run.failed:
        return "caught", f"by {', '.join(run.failures) or f'the end of pytest with {run.exit_code}'}"
    if run.skipped is not None:
        return "skipped", run.skipped
    return "survived", ""
