"""Breaks the product in many ways, one at a time, and runs the tests that must see it.

Each breakage is one line, put into a copy of the environment that this runs in. It is caught if a test fails. That
the tests pass on the whole product is seen first: else their failing would show nothing.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from fnmatch import fnmatchcase
from multiprocessing import get_context
from pathlib import Path

from tests.mutants.breakage import Breakage, Stale
from tests.mutants.breakages import BREAKAGES
from tests.mutants.copies import SOURCE
from tests.mutants.trying import Outcome, prepare, run_whole, try_breakage

_EXAMPLES = """examples:
  python -m tests.mutants                          all of them
  python -m tests.mutants --list                   their names, files and tests
  python -m tests.mutants --only 'seccomp-*'       some, by name or pattern
  python -m tests.mutants --only thaw-forgets-the-umask --workers 1
"""


def main() -> int:
    chosen = _arguments()
    breakages = _chosen(chosen.only)
    if chosen.list:
        for one in breakages:
            print(f"{one.name}\n    src/{one.file}\n    " + "\n    ".join(f"tests/{test}" for test in one.tests))
        return 0
    stale = [problem for one in breakages if (problem := _why_stale(one)) is not None]
    if stale:
        print(*stale, sep="\n")
        print("tests/mutants does not fit the source any more: write these breakages anew")
        return 2
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=".mutants-", dir=Path(sys.prefix).parent))
    folder.chmod(0o755)
    context = get_context("spawn")
    try:
        with ProcessPoolExecutor(chosen.workers, context, prepare, (folder, context.Lock())) as workers:
            if not _whole_product_passes(workers, chosen.workers, breakages):
                return 1
            outcomes = _tell_each([workers.submit(try_breakage, one) for one in breakages])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _summary(outcomes, time.monotonic() - began)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", default=["*"], help="these; a name may be a pattern")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="environments to work in (default: 2)")
    parser.add_argument("--list", action="store_true", help="show what would be broken, and do nothing")
    return parser.parse_args()


def _chosen(patterns: Sequence[str]) -> list[Breakage]:
    unknown = [each for each in patterns if not any(fnmatchcase(one.name, each) for one in BREAKAGES)]
    if unknown:
        raise SystemExit(f"no such breakage: {', '.join(unknown)}; --list shows all")
    return [one for one in BREAKAGES if any(fnmatchcase(one.name, each) for each in patterns)]


def _why_stale(breakage: Breakage) -> str | None:
    try:
        breakage.applied_to(SOURCE)
    except Stale as problem:
        return str(problem)
    return None


def _whole_product_passes(workers: ProcessPoolExecutor, count: int, breakages: Iterable[Breakage]) -> bool:
    """All tests that will be run, on what is not broken: as many shares as there are workers, of whole files."""
    by_file: dict[str, list[str]] = {}
    for test in dict.fromkeys(test for one in breakages for test in one.tests):
        by_file.setdefault(test.partition("::")[0], []).append(test)
    shares: list[list[str]] = [[] for _ in range(count)]
    for tests in sorted(by_file.values(), key=len, reverse=True):
        min(shares, key=len).extend(tests)
    runs = [work.result() for work in [workers.submit(run_whole, share) for share in shares if share]]
    for run in runs:
        if not run.passed:
            print(run.output)
            print("these tests do not pass on the whole product: nothing was broken, and nothing shown")
            return False
    total, longest = sum(map(len, shares)), max(run.seconds for run in runs)
    print(f"{total} tests pass on the whole product, {longest:.0f} s", flush=True)
    return True


def _tell_each(works: Sequence[Future[Outcome]]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for work in as_completed(works):
        one = work.result()
        outcomes.append(one)
        number = f"{len(outcomes):>{len(str(len(works)))}}/{len(works)}"
        print(f"{number} {one.verdict:8} {one.breakage.name} {one.told} ({one.seconds:.1f} s)", flush=True)
    return outcomes


def _summary(outcomes: Sequence[Outcome], seconds: float) -> int:
    caught = sum(one.caught for one in outcomes)
    skipped = sum(one.verdict == "skipped" for one in outcomes)
    failed = [one for one in outcomes if one.verdict in ("survived", "error")]
    for one in failed:
        print(f"\n{one.verdict}: {one.breakage.name} in src/{one.breakage.file}")
        print(f"  - {one.breakage.old!r}\n  + {one.breakage.new!r}")
        print(*(f"    tests/{test}" for test in one.breakage.tests), sep="\n")
    print(f"{caught} caught, {skipped} skipped, {len(failed)} failed in {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
