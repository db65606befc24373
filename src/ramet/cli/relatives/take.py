"""ramet take: bring variables and files of one sandbox into another, all of them or none."""

from __future__ import annotations

import argparse

from ramet.cli.output import print_record, progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, find_snapshot, server
from ramet.cli.sandbox_ids import add_sandbox_argument

_EXAMPLES = """\
examples:
  ramet take sbx_0f3a sbx_77e1 --names model,score           two variables of the second come into the first
  ramet take sbx_0f3a sbx_77e1 --files report.md plots       a file and a folder
  ramet take sbx_0f3a sbx_77e1 --files '/root/**/*.csv'      all CSV files that the second has changed
  ramet take sbx_0f3a sbx_77e1 --all-files --prefer theirs   all files that it has changed, also where both have
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "take", "bring variables and files of a fork into a sandbox", __doc__, _EXAMPLES)
    add_server_option(parser)
    add_sandbox_argument(parser, "sandbox", "INTO", "sandbox that they come into")
    add_sandbox_argument(parser, "source", "FROM", "sandbox or snapshot that has them")
    names = parser.add_mutually_exclusive_group()
    names.add_argument("--names", metavar="A,B", help="variables to take")
    names.add_argument("--all-names", action="store_true", help="take all variables that it has changed")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--files", nargs="+", metavar="PATH", help="files, folders and patterns to take")
    files.add_argument("--all-files", action="store_true", help="take all files that it has changed")
    parser.add_argument("--prefer", choices=("ours", "theirs"), help="whose to keep where both have changed the same")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    given = [name.strip() for name in chosen.names.split(",")] if chosen.names is not None else None
    with server(chosen) as url, progress("taking"):
        source = find_snapshot(url, chosen.source) if chosen.source.startswith("snp_") else find(url, chosen.source)
        taken = find(url, chosen.sandbox).take(
            source,
            names=True if chosen.all_names else given,
            files=True if chosen.all_files else chosen.files,
            prefer=chosen.prefer,
        )
    print_record(taken, chosen.json)
    return 0
