"""ramet diff: show how another sandbox differs, or what changed since a snapshot: files and Python names."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from ramet.cli.output import progress
from ramet.cli.place import add_server_option, find, find_snapshot, server
from ramet.cli.sandbox_ids import add_sandbox_argument

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = """\
examples:
  ramet diff sbx_0f3a sbx_77e1                what one would have to change in the first to make it the second
  ramet diff sbx_0f3a snp_51c0                what has changed in the sandbox since this snapshot of it
  ramet diff sbx_0f3a sbx_77e1 --path /root/project
  ramet diff sbx_0f3a sbx_77e1 --json | jq '.files[].path'
"""


def add_command(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "diff",
        help="compare a sandbox with another, or with a snapshot",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_option(parser)
    add_sandbox_argument(parser)
    add_sandbox_argument(parser, "other", "OTHER", "sandbox or snapshot to compare it with")
    parser.add_argument(
        "--path", action="append", metavar="PATH", help="compare only files below this path; may be given again"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url, progress("comparing"):
        other = find_snapshot(url, chosen.other) if chosen.other.startswith("snp_") else find(url, chosen.other)
        found = find(url, chosen.sandbox).diff(other, chosen.path)
    print(json.dumps(asdict(found)) if chosen.json else found)
    return 0
