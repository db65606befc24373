"""ramet merge: give a sandbox the state of another one; it keeps its id, and the other one is closed."""

from __future__ import annotations

import argparse
import json

from ramet.cli.output import progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import add_sandbox_argument

_EXAMPLES = """\
examples:
  ids=($(ramet fork sbx_0f3a -n 3))           try something in each copy, then keep the best one:
  ramet merge sbx_0f3a ${ids[1]}
  ramet rm ${ids[0]} ${ids[2]}
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "merge", "replace a sandbox by one of its forks", __doc__, _EXAMPLES)
    add_server_option(parser)
    add_sandbox_argument(parser, what="sandbox that is replaced")
    add_sandbox_argument(parser, "winner", "WINNER", "sandbox whose state it gets, and which is closed")
    parser.add_argument("--json", action="store_true", help="print a JSON object with the id")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url, progress("merging"):
        sandbox = find(url, chosen.sandbox)
        sandbox.merge_into(find(url, chosen.winner))
    print(json.dumps({"id": sandbox.id}) if chosen.json else sandbox.id)
    return 0
