"""ramet rm: close sandboxes of a server."""

from __future__ import annotations

import argparse
import json

from ramet.cli.output import print_error
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import completes
from ramet.errors import RametError, Unreachable

_EXAMPLES = """\
examples:
  ramet rm sbx_0f3a                           as much of an id as is enough
  ramet ps --quiet | xargs -r ramet rm        all

exit code: 0 when all are closed, 1 when one could not be closed.
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "rm", "close sandboxes", __doc__, _EXAMPLES)
    add_server_option(parser)
    completes(
        parser.add_argument(
            "sandboxes", nargs="+", metavar="SANDBOX", help="sandboxes to close: ids, or the beginnings of them"
        )
    )
    parser.add_argument("--json", action="store_true", help="print the ids of the closed sandboxes as a JSON array")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    closed: list[str] = []
    with server(chosen) as url:
        for wanted in chosen.sandboxes:
            try:
                sandbox = find(url, wanted)
                sandbox.close()
            except Unreachable:
                # The other sandboxes could not be reached either.
                raise
            except RametError as error:
                print_error(error)
                continue
            closed.append(sandbox.id)
            if not chosen.json:
                print(sandbox.id)
    if chosen.json:
        print(json.dumps(closed))
    return 0 if len(closed) == len(chosen.sandboxes) else 1
