"""ramet diff: show how another sandbox differs, or what changed since a snapshot: files and Python names."""

from __future__ import annotations

import argparse

from ramet.cli.output import print_record, progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, find_snapshot, server
from ramet.cli.sandbox_ids import add_sandbox_argument

_EXAMPLES = """\
examples:
  ramet diff sbx_0f3a sbx_77e1                what one would have to change in the first to make it the second
  ramet diff sbx_0f3a snp_51c0                what has changed in the sandbox since this snapshot of it
  ramet diff sbx_0f3a sbx_77e1 --path /root/project
  ramet diff sbx_0f3a sbx_77e1 --json | jq '.files[].path'
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "diff", "compare a sandbox with another, or with a snapshot", __doc__, _EXAMPLES)
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
    print_record(found, chosen.json)
    return 0
