"""ramet rewind: put a sandbox back to what it was after a point of its history."""

from __future__ import annotations

import argparse

from ramet.cli.described_options import add_options, given_options
from ramet.cli.output import print_record, progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import add_sandbox_argument
from ramet.protocol.requests.operations import RewindOptions

_EXAMPLES = """\
examples:
  ramet log sbx_0f3a                          shows the points
  ramet rewind sbx_0f3a p3
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "rewind", "put a sandbox back to a point of its history", __doc__, _EXAMPLES)
    add_server_option(parser)
    add_sandbox_argument(parser)
    add_options(parser, RewindOptions)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url, progress("rewinding"):
        found = find(url, chosen.sandbox).rewind(**given_options(chosen, RewindOptions))
    print_record(found, chosen.json)
    return 0
