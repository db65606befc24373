"""ramet snapshot: freeze a sandbox as it is, to go back to or to make others from."""

from __future__ import annotations

import argparse
import json

from ramet.cli.output import progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, find_snapshot, keep, server
from ramet.cli.sandbox_ids import completes, completes_snapshot
from ramet.client.inventory import inventory
from ramet.errors import InvalidArgument

_EXAMPLES = """\
examples:
  ramet snapshot sbx_0f3a                     prints the id of the snapshot
  ramet snapshot sbx_0f3a --restore snp_51c0  the sandbox goes back to that state
  ramet create --snapshot snp_51c0            another sandbox in that state
  ramet snapshot sbx_0f3a --name trained      keeps it as a template: ramet create --template trained
  ramet snapshot --list
  ramet snapshot --remove snp_51c0
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "snapshot", "freeze a sandbox, or go back", __doc__, _EXAMPLES)
    add_server_option(parser)
    completes(
        parser.add_argument(
            "sandbox", nargs="?", metavar="SANDBOX", help="sandbox to freeze: its id, or the beginning of it"
        )
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--name", metavar="NAME", help="save the snapshot as a template of this name, instead of an id")
    completes_snapshot(
        what.add_argument("--restore", metavar="SNAPSHOT", help="go back to this snapshot instead of taking one")
    )
    what.add_argument("--list", action="store_true", help="list the ids of all your snapshots")
    completes_snapshot(
        what.add_argument("--remove", metavar="SNAPSHOT", help="remove this snapshot; sandboxes made from it stay")
    )
    parser.add_argument("--json", action="store_true", help="print JSON: an object with the id, or the list of ids")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    alone = chosen.list or chosen.remove is not None
    if alone != (chosen.sandbox is None):
        problem = "SANDBOX is missing" if not alone else "--list and --remove take no SANDBOX"
        raise InvalidArgument(problem, hint="see the examples: ramet snapshot --help")
    with server(chosen) as url:
        if chosen.list:
            ids = inventory(url).snapshots
            print(json.dumps(ids) if chosen.json else "\n".join(ids), end="\n" if ids or chosen.json else "")
            return 0
        if chosen.remove is not None:
            snapshot = find_snapshot(url, chosen.remove)
            snapshot.close()
            told = snapshot.id
        elif chosen.restore is not None:
            sandbox = find(url, chosen.sandbox)
            with progress("restoring"):
                sandbox.restore(find_snapshot(url, chosen.restore))
            told = sandbox.id
        else:
            told = _take(url, chosen)
    print(json.dumps({"id": told}) if chosen.json else told)
    return 0


def _take(url: str, chosen: argparse.Namespace) -> str:
    """Take a snapshot. Return its id, or its name as a template."""
    with progress("taking a snapshot"):
        snapshot = find(url, chosen.sandbox).snapshot()
        if chosen.name is None:
            keep(snapshot)
            return snapshot.id
        with snapshot:
            snapshot.save_as(chosen.name)
            return str(chosen.name)
