"""The command ``ramet``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version

from ramet.cli import completion, doctor, fork, gateway, keys, logs, mcp, ps, rm, run, serve, shell, top
from ramet.cli.output import print_error
from ramet.errors import RametError

_EXAMPLES = """\
examples:
  ramet run script.py     a script in a sandbox of its own
  ramet shell             a REPL in a sandbox
  ramet serve             sandboxes over HTTP; then in another terminal:
  ramet ps                what is running there
  ramet gateway --upstream URL    Claude's code execution for programs that speak the Messages API
  ramet mcp               sandboxes for MCP clients
  ramet doctor            what this machine can do for a sandbox, and how to mend what is missing

`ramet COMMAND --help` shows more examples.
"""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ramet",
        description="Stateful Python sandboxes on your own machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ramet {version('ramet')}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for module in (run, shell, ps, top, logs, fork, rm, serve, keys, gateway, mcp, doctor):
        module.add_command(commands)
    completion.add_command(commands, parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser()
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help()
        return 2
    try:
        result: int = chosen.run(chosen)
        sys.stdout.flush()
    except RametError as error:
        print_error(error)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Nobody reads our output any more. Python would complain about what is left in its buffer at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return result


if __name__ == "__main__":
    sys.exit(main())
