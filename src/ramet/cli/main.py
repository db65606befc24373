"""The command ``ramet``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ramet.cli import completion, doctor
from ramet.cli.local import images, run, shell
from ramet.cli.output import print_error
from ramet.cli.parsing import CommandParser
from ramet.cli.relatives import merge, take
from ramet.cli.sandboxes import (
    cp,
    create,
    diff,
    exec,
    fork,
    log,
    logs,
    ps,
    rewind,
    rm,
    snapshot,
    templates,
    top,
    undo,
)
from ramet.cli.servers import gateway, keys, mcp, serve
from ramet.cli.sleeping import hibernate, resume
from ramet.errors import RametError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

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


_COMMANDS = (
    *(
        run,
        shell,
        create,
        exec,
        cp,
        ps,
        top,
        logs,
        log,
        undo,
        rewind,
        hibernate,
        resume,
        fork,
        diff,
        merge,
        take,
        snapshot,
        templates,
        images,
        rm,
    ),
    *(serve, keys, gateway, mcp, doctor),
)


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="ramet",
        description="Stateful Python sandboxes on your own machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ramet {version('ramet')}")
    # Typed by the parsers it makes, whose class a command need not know.
    below: Any = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    commands: _SubParsersAction[argparse.ArgumentParser] = below
    for module in _COMMANDS:
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
