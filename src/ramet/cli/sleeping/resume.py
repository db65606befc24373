"""ramet resume: go on with a persistent sandbox that has ended, under its id; without one, list what can be resumed."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict

from ramet.cli.output import print_table, progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, keep, server
from ramet.client.blocking.sandbox import Sandbox

_EXAMPLES = """\
examples:
  ramet resume                                what can be resumed
  ramet resume sbx_0f3a61c29d4c4b6a9d0e5f7a8b1c2d3e
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "resume", "go on with a persistent sandbox that has ended", __doc__, _EXAMPLES)
    add_server_option(parser)
    parser.add_argument("sandbox", nargs="?", metavar="SANDBOX", help="id of the sandbox (default: list all)")
    parser.add_argument("--json", action="store_true", help="print a JSON object, or one for each sandbox of the list")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url:
        if chosen.sandbox is None:
            return _list(url, chosen.json)
        with progress("resuming"):
            sandbox = Sandbox.resume(chosen.sandbox, url=url)
            keep(sandbox)
    missing = [asdict(cell) for cell in sandbox.missing_cells]
    if chosen.json:
        print(json.dumps({"id": sandbox.id, "missing": missing}))
        return 0
    print(sandbox.id)
    for cell in sandbox.missing_cells:
        print(f"missing: cell {cell.cell_id}: {cell.code.splitlines()[0] if cell.code else ''}")
    return 0


def _list(url: str, as_json: bool) -> int:
    rows = Sandbox.kept(url=url)
    if as_json:
        for row in rows:
            print(json.dumps(asdict(row)))
        return 0
    table = [
        (row.id, row.template, time.strftime("%Y-%m-%d %H:%M", time.localtime(row.created_ms / 1000))) for row in rows
    ]
    print_table(("ID", "TEMPLATE", "CREATED"), table)
    return 0
