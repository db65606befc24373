"""ramet create: make a sandbox at a server; it stays until it is closed or its time is over."""

from __future__ import annotations

import argparse
import json

from ramet.cli.output import progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find_snapshot, keep, server
from ramet.cli.sandbox_ids import completes_snapshot
from ramet.cli.sandbox_options import add_sandbox_options, make_sandbox
from ramet.errors import InvalidArgument

_EXAMPLES = """\
examples:
  ramet create                                prints the id
  id=$(ramet create --template python-datasci --memory-mib 2048)
  ramet cp data.csv $id: && ramet exec -c 'import pandas; d = pandas.read_csv("data.csv")' $id
  ramet create --env MODE=fast --network api.example
  ramet create --idle-timeout 3600            ends after an hour without use
  ramet create --snapshot snp_51c0            in the state of a snapshot
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "create", "make a sandbox that stays", __doc__, _EXAMPLES)
    add_server_option(parser)
    add_sandbox_options(parser, "create")
    completes_snapshot(
        parser.add_argument(
            "--snapshot", metavar="ID", help="start in the state of this snapshot instead of a template"
        )
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object with the id")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    if chosen.snapshot is not None and chosen.template is not None:
        raise InvalidArgument("--snapshot and --template cannot be given together", hint="leave one of them out")
    with server(chosen) as url, progress("starting a sandbox"):
        source = None if chosen.snapshot is None else find_snapshot(url, chosen.snapshot)
        sandbox = make_sandbox(chosen, url, source)
        keep(sandbox)
    print(json.dumps({"id": sandbox.id}) if chosen.json else sandbox.id)
    return 0
