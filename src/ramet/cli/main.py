"""The command ``ramet``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from ramet.cli import doctor

_EXAMPLES = """\
examples:
  ramet doctor            what this machine can do for a sandbox, and how to mend what is missing
  ramet doctor --no-trial only look; do not make a sandbox to see what it really gets
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="ramet",
        description="Stateful Python sandboxes on your own machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ramet {version('ramet')}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    doctor.add_command(commands)
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help()
        return 2
    result: int = chosen.run(chosen)
    return result


if __name__ == "__main__":
    sys.exit(main())
