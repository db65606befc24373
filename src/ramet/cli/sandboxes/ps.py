"""ramet ps: list your sandboxes at a server."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict

from ramet.cli.output import cut, duration, print_note, print_table, size
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, server
from ramet.cli.sandbox_ids import short
from ramet.client.blocking.sandbox import Sandbox
from ramet.protocol.values.listing import SandboxRow

_EXAMPLES = """\
examples:
  ramet ps
  ramet ps --quiet | xargs -r ramet rm        close all
  ramet ps --json | jq '.[] | select(.state == "running") | .id'

Ids are shortened to what is enough for other commands. STATE: running+2 has two more cells in its queue.
ENDS IN: when it is closed if nobody uses it. LIMIT: memory that it may use.
"""

_TITLES = ("SANDBOX", "STATE", "TEMPLATE", "AGE", "ENDS IN", "LIMIT", "FORK OF")
# Keeps lines within 80 columns.
_TEMPLATE_CHARACTERS = 16


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "ps", "list sandboxes", __doc__, _EXAMPLES)
    add_server_option(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print whole ids only")
    parser.add_argument("--json", action="store_true", help="print a JSON array with everything that is known")
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
        keyed = any(row.key is not None for row in rows)  # only operators, who see the sandboxes of all keys, get it
        owners = [(row.key or "-",) if keyed else () for row in rows]
        titles = ("KEY",) if keyed else ()
        ids = [row.id for row in rows]
        columns = [(*owner, *_columns(row, ids)) for owner, row in zip(owners, rows, strict=True)]
        print_table((*titles, *_TITLES), columns)
    else:
        print_note("There are no sandboxes.")
    return 0


def _columns(row: SandboxRow, ids: list[str]) -> tuple[str, ...]:
    now_ms = time.time() * 1000
    ends = [moment for moment in (row.expires_ms, row.idle_expires_ms) if moment is not None]
    return (
        short(row.id, ids),
        f"{row.state}+{row.waiting}" if row.waiting else row.state,
        cut(row.template, _TEMPLATE_CHARACTERS),
        duration((now_ms - row.created_ms) / 1000),
        duration((min(ends) - now_ms) / 1000) if ends else "-",
        size(row.memory_limit_bytes),
        short(row.parent, ids) if row.parent else "-",
    )
