"""ramet exec: run a command, or Python code, in a sandbox of a server."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from ramet.cli.local.outcomes import ended_as_a_command, exit_code, explain, show_events
from ramet.cli.local.script import RunScript
from ramet.cli.local.standard_input import forwarded_input
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import completes
from ramet.cli.terminal import converse
from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import InvalidArgument

_EXAMPLES = """\
examples:
  ramet exec sbx_0f3a ls -l /root
  ramet exec sbx_0f3a 'ls | wc -l'            one argument is a line for bash
  ramet exec -c 'x + 1' sbx_0f3a              Python, with the variables of the sandbox
  ramet exec -it sbx_0f3a bash                on a terminal: a shell beside the cells
  ramet exec -i sbx_0f3a wc -l < data.csv     standard input is passed on

Without -t it waits its turn in the queue of the sandbox, as a cell does; on a terminal it starts at once.

exit code: that of the command; 124 at the timeout; 130 after Ctrl-C; 125 when the sandbox failed and not the command.
"""


def add_command(commands: Commands) -> None:
    parser = new_command(
        commands,
        "exec",
        "run a command in a sandbox",
        __doc__,
        _EXAMPLES,
        usage="ramet exec [options] SANDBOX COMMAND [ARGUMENTS ...]",
    )
    add_server_option(parser)
    parser.add_argument("-c", "--code", help="Python code to run instead of a command")
    parser.add_argument("-i", "--interactive", action="store_true", help="pass standard input on to the command")
    parser.add_argument("-t", "--tty", action="store_true", help="run the command on a terminal, as ssh -t does")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="stop it after this time; exit code 124. Not with -t"
    )
    completes(parser.add_argument("sandbox", metavar="SANDBOX", help="sandbox: its id, or the beginning of it"))
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="COMMAND", help="command and its arguments")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    return ended_as_a_command(lambda: _execute(chosen), chosen)


def _execute(chosen: argparse.Namespace) -> int:
    _check(chosen)
    with server(chosen) as url:
        sandbox = find(url, chosen.sandbox)
        if chosen.tty:
            return converse(
                sandbox, _line(chosen.command_line) if len(chosen.command_line) == 1 else chosen.command_line
            )
        return _run(sandbox, chosen)


def _check(chosen: argparse.Namespace) -> None:
    if (chosen.code is None) == (not chosen.command_line):
        raise InvalidArgument("either a COMMAND or -c CODE is needed", hint="ramet exec SANDBOX ls")
    if chosen.command_line and chosen.command_line[0].startswith("-"):
        # No program is called so. Bash would take it for an option of its own, and show its usage.
        raise InvalidArgument(
            f"options go before SANDBOX, and {chosen.command_line[0]} comes after it",
            hint="ramet exec -c CODE SANDBOX, or ramet exec -it SANDBOX COMMAND",
        )
    if chosen.tty and chosen.code is not None:
        raise InvalidArgument("-t is for commands, not for code", hint="ramet shell SANDBOX is a REPL on a terminal")
    if chosen.tty and chosen.timeout is not None:
        raise InvalidArgument("--timeout and -t cannot be given together")
    if chosen.tty and not (os.isatty(0) and sys.stdout.isatty()):
        raise InvalidArgument(
            "-t needs a terminal, and the input or output of this command is none", hint="leave out -t"
        )


def _line(command: list[str]) -> str:
    return command[0] if len(command) == 1 else shlex.join(command)


def _run(sandbox: Sandbox, chosen: argparse.Namespace) -> int:
    """Run the command or the code as a cell. Return its exit code."""
    language = "bash" if chosen.code is None else "python"
    text = _line(chosen.command_line) if chosen.code is None else chosen.code
    arguments = [] if chosen.code is None else ["-c"]
    script = RunScript(language, "<string>", text.encode("utf-8", "surrogateescape"), arguments)
    with forwarded_input(sandbox, chosen.interactive and not os.isatty(0), remove=True) as folder:
        code = script.cell(folder, final=False)
        result = show_events(sandbox.run_code_stream(code, timeout=chosen.timeout))
    explain(result, chosen.timeout)
    return exit_code(result)
