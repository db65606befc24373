"""ramet fork: copy a running sandbox with its memory, files, processes and threads."""

from __future__ import annotations

import argparse
import json

from ramet.cli.output import progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, keep, server
from ramet.cli.sandbox_ids import add_sandbox_argument

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
    parser.add_argument("-n", "--count", type=int, default=1, metavar="N", help="number of copies (default: 1)")
    parser.add_argument("--reseed", action="store_true", help="give each copy random numbers of its own")
    parser.add_argument("--inherit-secrets", action="store_true", help="let the copies use the secrets of the sandbox")
    parser.add_argument("--at", metavar="POINT", help="begin at this point of its history, as `ramet log` shows it")
    parser.add_argument("--json", action="store_true", help="print the ids as a JSON array")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url, progress("forking"):
        sandbox = find(url, chosen.sandbox)
        children = sandbox.fork(
            chosen.count, reseed=chosen.reseed, inherit_secrets=chosen.inherit_secrets, at=chosen.at
        )
        ids = [child.id for child in children]
        for child in children:
            keep(child)
    print(json.dumps(ids) if chosen.json else "\n".join(ids))
    return 0
