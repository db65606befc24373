"""ramet rm: close sandboxes of a server."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ramet.cli.output import print_error
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import completes
from ramet.errors import RametError, Unreachable

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = """\
examples:
  ramet rm sbx_0f3a                           as much of an id as is enough
  ramet ps --quiet | xargs -r ramet rm        all

exit code: 0 when all are closed, 1 when one could not be closed.
"""


def add_command(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "rm",
        help="close sandboxes",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
