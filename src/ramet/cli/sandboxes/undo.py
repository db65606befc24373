"""ramet undo: put a sandbox back to what it was before its last cell: memory, threads and files."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from ramet.cli.output import progress
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import add_sandbox_argument

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = """\
examples:
  ramet undo sbx_0f3a                         the state before the last cell
  ramet undo sbx_0f3a 3                       before the last three
"""


def add_command(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "undo",
        help="take back the last cells of a sandbox",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_option(parser)
    add_sandbox_argument(parser)
    parser.add_argument("count", nargs="?", type=int, default=1, metavar="N", help="number of cells (default: 1)")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url, progress("undoing"):
        found = find(url, chosen.sandbox).undo(chosen.count)
    print(json.dumps(asdict(found)) if chosen.json else found)
    return 0
