"""ramet undo: put a sandbox back to what it was before its last cell: memory, threads and files."""

from __future__ import annotations

import argparse

from ramet.cli.described_options import add_options, given_options
from ramet.cli.output import print_record, progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import add_sandbox_argument
from ramet.protocol.requests.operations import UndoOptions

_EXAMPLES = """\
examples:
  ramet undo sbx_0f3a                         the state before the last cell
  ramet undo sbx_0f3a 3                       before the last three
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "undo", "take back the last cells of a sandbox", __doc__, _EXAMPLES)
    add_server_option(parser)
    add_sandbox_argument(parser)
    add_options(parser, UndoOptions)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url, progress("undoing"):
        found = find(url, chosen.sandbox).undo(**given_options(chosen, UndoOptions))
    print_record(found, chosen.json)
    return 0
