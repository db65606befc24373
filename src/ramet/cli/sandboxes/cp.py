"""ramet cp: copy files and folders into a sandbox of a server, or out of it."""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import PurePosixPath
from typing import NamedTuple

from ramet.cli.output import print_note, shown
from ramet.cli.parsing import Commands, new_command
from ramet.cli.place import add_server_option, find, server
from ramet.cli.sandbox_ids import completes_path
from ramet.cli.sandboxes.copying import MIB, CopyTally, download, is_name, make_folder, upload
from ramet.client.blocking.sandbox import Sandbox
from ramet.errors import FileNotFound, InvalidArgument

_EXAMPLES = """\
examples:
  ramet cp data.csv sbx_0f3a:                 to /root/data.csv
  ramet cp data.csv sbx_0f3a:/data/in.csv     folders above it are made
  ramet cp sbx_0f3a:plot.png .                a path without / at its beginning is below /root
  ramet cp ./project sbx_0f3a:project         a folder and all that is in it
  ramet cp sbx_0f3a:results ./results
  ramet cp a.csv b.csv sbx_0f3a:/data/        several, into a folder

A folder that exists takes the copy into itself; otherwise the copy gets the name. Links are left out. A path of this
machine with a colon in its first part is written with ./ before it.
"""

_REMOTE = re.compile(r"([A-Za-z0-9_]+):(.*)", re.DOTALL)
_DEFAULT_MAX_MIB = 4096


class CopyEnd(NamedTuple):
    """One side of a copy. ``sandbox`` is None for a path of this machine."""

    sandbox: str | None
    path: str


def add_command(commands: Commands) -> None:
    parser = new_command(
        commands,
        "cp",
        "copy files into a sandbox or out of it",
        __doc__,
        _EXAMPLES,
        usage="ramet cp [options] SOURCE ... TARGET",
    )
    add_server_option(parser)
    parser.add_argument(
        "--max-mib",
        type=int,
        default=_DEFAULT_MAX_MIB,
        metavar="N",
        help="stop rather than copy more than this, in MiB (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the copied files and bytes as a JSON object")
    completes_path(
        parser.add_argument(
            "paths", nargs="+", metavar="SOURCE TARGET", help="paths; those in a sandbox are written SANDBOX:PATH"
        )
    )
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    if len(chosen.paths) < 2:
        raise InvalidArgument("a source and a target are needed", hint="ramet cp data.csv SANDBOX:")
    *sources, target = [place(text) for text in chosen.paths]
    if target.sandbox is None and any(source.sandbox is None for source in sources):
        raise InvalidArgument("one side of a copy must be in a sandbox", hint="write it as SANDBOX:PATH")
    if target.sandbox is not None and any(source.sandbox is not None for source in sources):
        raise InvalidArgument(
            "one side of a copy must be on this machine", hint="copy to a folder here, and from there"
        )
    if chosen.max_mib < 1:
        raise InvalidArgument(f"--max-mib must be at least 1, got {chosen.max_mib}")
    copied = CopyTally(chosen.max_mib * MIB)
    with server(chosen) as url:
        for source in sources:
            if target.sandbox is not None:
                _put(find(url, target.sandbox), source.path, target.path, copied, len(sources) > 1)
            else:
                assert source.sandbox is not None
                _get(find(url, source.sandbox), source.path, target.path, copied, len(sources) > 1)
    if copied.left_out:
        print_note(f"ramet: left out, as no file or folder: {', '.join(map(shown, copied.left_out[:10]))}")
    if chosen.json:
        print(json.dumps({"files": copied.files, "bytes": copied.bytes, "left_out": copied.left_out}))
    return 0


def place(text: str) -> CopyEnd:
    found = _REMOTE.fullmatch(text)
    return CopyEnd(None, text) if found is None else CopyEnd(found[1], found[2] or ".")


def _put(sandbox: Sandbox, local: str, remote: str, copied: CopyTally, several: bool) -> None:
    name = os.path.basename(os.path.abspath(local))
    if remote.endswith("/") or several or _is_folder(sandbox, remote):
        remote = f"{remote.rstrip('/')}/{name}"
    upload(sandbox, local, remote, copied)


def _get(sandbox: Sandbox, remote: str, local: str, copied: CopyTally, several: bool) -> None:
    if os.path.isdir(local) or local.endswith("/") or several:
        name = PurePosixPath(remote).name
        if name and not is_name(name):
            raise InvalidArgument(f"{shown(remote)} has a name that is odd here", hint="name the target, too")
        if name:
            make_folder(local)
            local = os.path.join(local, name)
    download(sandbox, remote, local, copied)


def _is_folder(sandbox: Sandbox, path: str) -> bool:
    try:
        return sandbox.files.stat(path).type == "folder"
    except FileNotFound:
        return False
