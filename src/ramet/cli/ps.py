"""ramet ps: the sandboxes that a server keeps for you."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from ramet.cli.output import duration, print_note, print_table, size
from ramet.cli.place import add_server_option, server
from ramet.client.sandbox import Sandbox
from ramet.protocol.listing import SandboxRow

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = """\
examples:
  ramet ps
  ramet ps --quiet | xargs -r ramet rm        close all
  ramet ps --json | jq '.[] | select(.state == "running") | .id'
"""

_TITLES = ("SANDBOX", "STATE", "TEMPLATE", "AGE", "ENDS IN", "IF UNUSED", "MEMORY AT MOST", "WAITING", "FORK OF")


def add_command(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "ps",
        help="list sandboxes",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_option(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="ids only")
    parser.add_argument("--json", action="store_true", help="as a JSON array")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url:
        rows = Sandbox.list_all(url=url)
    if chosen.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    elif chosen.quiet:
        for row in rows:
            print(row.id)
    elif rows:
        print_table(_TITLES, [_columns(row) for row in rows])
    else:
        print_note("There are no sandboxes.")
    return 0


def _columns(row: SandboxRow) -> tuple[str, ...]:
    now_ms = time.time() * 1000

    def until(moment_ms: int | None) -> str:
        return "-" if moment_ms is None else duration((moment_ms - now_ms) / 1000)

    return (
        row.id,
        row.state,
        row.template,
        duration((now_ms - row.created_ms) / 1000),
        until(row.expires_ms),
        until(row.idle_expires_ms),
        size(row.memory_limit_bytes),
        str(row.waiting),
        row.parent or "-",
    )
