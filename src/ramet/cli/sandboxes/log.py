"""ramet log: show the past of a sandbox, a line for each cell, and which states it can go back to."""

from __future__ import annotations

import argparse

from ramet.cli.output import print_record
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import add_sandbox_argument

_EXAMPLES = """\
examples:
  ramet log sbx_0f3a
  ramet log sbx_0f3a --json | jq -r '.points[] | select(.kept) | .id'
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "log", "show the past of a sandbox", __doc__, _EXAMPLES)
    add_server_option(parser)
    add_sandbox_argument(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url:
        found = find(url, chosen.sandbox).history()
    print_record(found, chosen.json)
    return 0
