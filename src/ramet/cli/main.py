"""The command ``ramet``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ramet.cli.output import print_error
from ramet.cli.parsing import CommandParser, Commands
from ramet.errors import RametError

_EXAMPLES = """\
examples:
  ramet run script.py     a script in a sandbox of its own
  ramet run --output out analysis.py     its plots and files come out
  ramet shell             a REPL in a sandbox
  ramet serve             sandboxes over HTTP; then in another terminal:
  ramet create            a sandbox that stays; then: ramet cp, exec, shell, undo, fork, diff, merge, take, rm
  ramet ps                what is running there
  ramet gateway --upstream URL    Claude's code execution for programs that speak the Messages API
  ramet mcp               sandboxes for MCP clients
  ramet doctor            what this machine can do for sandboxes, and how to fix what is missing

`ramet COMMAND --help` shows more examples.
"""


# In the order in which `ramet --help` lists them. A module is imported when its command is given: all of them together
# take longer than many a command.
_COMMANDS = {
    "run": "ramet.cli.local.run",
    "shell": "ramet.cli.local.shell",
    "create": "ramet.cli.sandboxes.create",
    "exec": "ramet.cli.sandboxes.exec",
    "cp": "ramet.cli.sandboxes.cp",
    "ps": "ramet.cli.sandboxes.ps",
    "top": "ramet.cli.sandboxes.top",
    "logs": "ramet.cli.sandboxes.logs",
    "log": "ramet.cli.sandboxes.log",
    "undo": "ramet.cli.sandboxes.undo",
    "rewind": "ramet.cli.sandboxes.rewind",
    "hibernate": "ramet.cli.sleeping.hibernate",
    "resume": "ramet.cli.sleeping.resume",
    "fork": "ramet.cli.sandboxes.fork",
    "diff": "ramet.cli.sandboxes.diff",
    "merge": "ramet.cli.relatives.merge",
    "take": "ramet.cli.relatives.take",
    "snapshot": "ramet.cli.sandboxes.snapshot",
    "templates": "ramet.cli.sandboxes.templates",
    "images": "ramet.cli.local.images",
    "rm": "ramet.cli.sandboxes.rm",
    "serve": "ramet.cli.servers.serve",
    "keys": "ramet.cli.servers.keys",
    "gateway": "ramet.cli.servers.gateway",
    "mcp": "ramet.cli.servers.mcp",
    "doctor": "ramet.cli.doctor",
}


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands, or of one."""
    parser = CommandParser(
        prog="ramet",
        description="Stateful Python sandboxes on your own machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    # Typed by the parsers it makes, whose class a command need not know.
    below: Any = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    commands: Commands = below
    if only is not None:
        import_module(_COMMANDS[only]).add_command(commands)
        return parser
    for module in _COMMANDS.values():
        import_module(module).add_command(commands)
    completion = import_module("ramet.cli.completion")
    completion.add_command(commands, parser)
    return parser


class _ShowVersion(argparse.Action):
    """Reads the version when it is asked for, because reading it takes longer than parsing."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"ramet {version('ramet')}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    only = arguments[0] if arguments and arguments[0] in _COMMANDS else None
    parser = make_parser(only)
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help()
        return 2
    try:
        result: int = chosen.run(chosen)
        sys.stdout.flush()
    except RametError as error:
        print_error(error, chosen)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe. Redirect stdout, because Python would complain at exit about what is left in its
        # buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return result


if __name__ == "__main__":
    sys.exit(main())
