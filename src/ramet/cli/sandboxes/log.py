"""ramet log: show the past of a sandbox, a line for each cell, and which states it can go back to."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import add_sandbox_argument

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = """\
examples:
  ramet log sbx_0f3a
  ramet log sbx_0f3a --json | jq -r '.points[] | select(.kept) | .id'
"""


def add_command(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "log",
        help="show the past of a sandbox",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_option(parser)
    add_sandbox_argument(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url:
        found = find(url, chosen.sandbox).history()
    print(json.dumps(asdict(found)) if chosen.json else found)
    return 0
