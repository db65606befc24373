"""ramet rewind: put a sandbox back to what it was after a point of its history."""

from __future__ import annotations

import argparse

from ramet.cli.output import print_record, progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import add_sandbox_argument

_EXAMPLES = """\
examples:
  ramet log sbx_0f3a                          shows the points
  ramet rewind sbx_0f3a p3
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "rewind", "put a sandbox back to a point of its history", __doc__, _EXAMPLES)
    add_server_option(parser)
    add_sandbox_argument(parser)
    parser.add_argument("point", metavar="POINT", help="id of a point, as `ramet log` shows it")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url, progress("rewinding"):
        found = find(url, chosen.sandbox).rewind(chosen.point)
    print_record(found, chosen.json)
    return 0
