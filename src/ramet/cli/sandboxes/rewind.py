"""ramet rewind: put a sandbox back to what it was after a point of its history."""

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
  ramet log sbx_0f3a                          shows the points
  ramet rewind sbx_0f3a p3
"""


def add_command(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "rewind",
        help="put a sandbox back to a point of its history",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_option(parser)
    add_sandbox_argument(parser)
    parser.add_argument("point", metavar="POINT", help="id of a point, as `ramet log` shows it")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url, progress("rewinding"):
        found = find(url, chosen.sandbox).rewind(chosen.point)
    print(json.dumps(asdict(found)) if chosen.json else found)
    return 0
