"""`python -m bench`: runs the scenarios, prints one table and one JSON line, or the table of README.md."""

import argparse
import os
import random
import sys
import time
from pathlib import Path

from bench import readme
from bench.scenarios import SCENARIOS
from bench.settings import Settings
from bench.table import Row, as_json_line, as_table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Ramet against what else one could use.")
    parser.add_argument("--quick", action="store_true", help="few rounds and small crowds: a look, not a result")
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--readme", action="store_true", help="measure and print only the table of README.md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line to FILE")
    parser.add_argument("--seed", type=int, default=None, help="of the shuffled order")
    chosen = parser.parse_args()
    os.environ.pop("RAMET_URL", None)  # where nothing else is said, our own engine is measured

    settings = Settings(chosen.quick, random.Random(chosen.seed))
    rows: list[Row] = []
    failed = False
    for name in readme.SCENARIOS if chosen.readme else chosen.only or SCENARIOS:
        started = time.perf_counter()
        try:
            rows += SCENARIOS[name](settings)
        # One scenario that breaks must not cost the figures of the others; it is in the table and in the exit code.
        except Exception as error:
            failed = True
            rows.append(Row(name, "", "seconds", note=f"failed: {type(error).__name__}: {error}".splitlines()[0]))
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)

    line = as_json_line(rows, chosen.quick)
    if chosen.readme:
        print(f"{readme.as_markdown(rows)}\n\n{readme.machine()}")
    else:
        print(f"{as_table(rows)}\n\n{line}")
    if chosen.json is not None:
        chosen.json.write_text(line + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
