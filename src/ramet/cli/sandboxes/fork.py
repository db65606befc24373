"""ramet fork: copy a running sandbox with its memory, files, processes and threads."""

from __future__ import annotations

import argparse
import json

from ramet.cli.described_options import add_options, given_options
from ramet.cli.output import progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, keep, server
from ramet.cli.sandbox_ids import add_sandbox_argument
from ramet.protocol.requests.operations import ForkOptions

_EXAMPLES = """\
examples:
  ramet fork sbx_0f3a                         prints the id of the copy
  ramet fork sbx_0f3a -n 3 --reseed           three, whose random numbers differ
  ramet fork sbx_0f3a --at p3                 a copy of what it was after that point of `ramet log`
  ramet fork sbx_0f3a --inherit-secrets       the copy may use the secrets that the sandbox was given
  for id in $(ramet fork sbx_0f3a -n 3); do ramet run --sandbox $id -c 'search()'; done
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "fork", "copy a running sandbox", __doc__, _EXAMPLES)
    add_server_option(parser)
    add_sandbox_argument(parser)
    add_options(parser, ForkOptions)
    parser.add_argument("--json", action="store_true", help="print the ids as a JSON array")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url, progress("forking"):
        sandbox = find(url, chosen.sandbox)
        children = sandbox.fork(**given_options(chosen, ForkOptions))
        ids = [child.id for child in children]
        for child in children:
            keep(child)
    print(json.dumps(ids) if chosen.json else "\n".join(ids))
    return 0
