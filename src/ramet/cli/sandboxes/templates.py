"""ramet templates: list what sandboxes can be made from."""

from __future__ import annotations

import argparse
import json

from ramet.cli.output import print_table
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, chosen_url, server
from ramet.client.inventory import inventory
from ramet.protocol.checks import BUILTIN_TEMPLATES

_EXAMPLES = """\
examples:
  ramet templates
  ramet run --template python-datasci -c 'import pandas'
  ramet snapshot sbx_0f3a --name trained      makes one from a sandbox of a server
  ramet templates --url http://127.0.0.1:7070 --json

Without --url or RAMET_URL: those that every sandbox of this machine can be made from.
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "templates", "list what sandboxes can be made from", __doc__, _EXAMPLES)
    add_server_option(parser, "no server")
    parser.add_argument("--json", action="store_true", help="print a JSON array")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    rows = [(name, "built in", ", ".join(modules)) for name, modules in BUILTIN_TEMPLATES.items()]
    if chosen_url(chosen) is not None:
        with server(chosen) as url:
            rows += [(name, "snapshot", "") for name in inventory(url).templates]
    if chosen.json:
        print(json.dumps([{"name": name, "kind": kind} for name, kind, _ in rows], indent=2))
    else:
        print_table(
            ("TEMPLATE", "KIND", "HAS IMPORTED"), [(name, kind, imported or "-") for name, kind, imported in rows]
        )
    return 0
