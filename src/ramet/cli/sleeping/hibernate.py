"""ramet hibernate: write a sandbox to disk, and give up its memory and processes. The next call wakes it."""

from __future__ import annotations

import argparse

from ramet.cli.output import progress
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import add_sandbox_argument

_EXAMPLES = """\
examples:
  ramet hibernate sbx_0f3a                    it sleeps on disk
  ramet exec sbx_0f3a 'print(x)'              wakes it
"""


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "hibernate", "put a sandbox to sleep on disk", __doc__, _EXAMPLES)
    add_server_option(parser)
    add_sandbox_argument(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    with server(chosen) as url, progress("hibernating"):
        size_bytes = find(url, chosen.sandbox).hibernate()
    print(f"{chosen.sandbox} sleeps on disk, in {size_bytes / 2**20:.1f} MiB")
    return 0
