"""ramet take: bring variables and files of one sandbox into another, all of them or none."""

from __future__ import annotations

import argparse

from ramet.cli.described_options import add_options, given_options
from ramet.cli.output import print_record, progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, find_snapshot, server
from ramet.cli.sandbox_ids import add_sandbox_argument
from ramet.protocol.requests.operations import TakeOptions

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
    add_options(parser, TakeOptions)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url, progress("taking"):
        source = find_snapshot(url, chosen.source) if chosen.source.startswith("snp_") else find(url, chosen.source)
        taken = find(url, chosen.sandbox).take(source, **given_options(chosen, TakeOptions))
    print_record(taken, chosen.json)
    return 0
