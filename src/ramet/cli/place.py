"""Where a command's sandboxes are: at a server, or in an engine of the command's own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ramet.client.blocking.forks import Snapshot
from ramet.client.blocking.sandbox import Sandbox
from ramet.client.inventory import inventory, snapshot_with_id
from ramet.errors import RametError, Unreachable

DEFAULT_URL = "http://127.0.0.1:7070"

_WITHOUT = "this command needs a server, and there is none at"
_HINT = "start one with `ramet serve`, or name yours: export RAMET_URL=http://HOST:PORT RAMET_API_KEY=KEY"


def add_server_option(parser: argparse.ArgumentParser, default: str = DEFAULT_URL) -> None:
    # There is no option for the key, because every user of the machine can read command lines.
    shown = f"URL of the server; its key is read from RAMET_API_KEY (default: $RAMET_URL, or {default})"
    parser.add_argument("--url", help=shown)


def chosen_url(chosen: argparse.Namespace) -> str | None:
    """Return the server's URL, or None if the user named no server."""
    return chosen.url or os.environ.get("RAMET_URL") or None


@contextmanager
def server(chosen: argparse.Namespace) -> Iterator[str]:
    """Yield the URL of the server that a command needs: the one named, or the default.

    Explains what is missing if it fails.
    """
    named = chosen_url(chosen)
    url = named or DEFAULT_URL
    try:
        yield url
    except Unreachable as error:
        if named is None:
            raise Unreachable(f"{_WITHOUT} {url}", hint=_HINT, details=error.details) from error
        raise


def find(url: str, wanted: str) -> Sandbox:
    """Return a handle of a sandbox by its id or the beginning of it."""
    return Sandbox.connect(full_id(url, wanted), url=url)


def full_id(url: str, wanted: str) -> str:
    """Return the id that begins with ``wanted``. Raise RametError if none or several do."""
    if len(wanted) >= _WHOLE_ID_CHARACTERS:
        return wanted
    found = [row.id for row in Sandbox.list_all(url=url) if row.id.startswith((wanted, f"sbx_{wanted}"))]
    if len(found) == 1:
        return found[0]
    what = "no sandbox begins" if not found else f"{len(found)} sandboxes begin"
    raise RametError(f"{what} with {wanted!r}", hint="see them with: ramet ps")


def find_snapshot(url: str, wanted: str) -> Snapshot:
    """Return a handle of a snapshot by its id or the beginning of it."""
    found = [one for one in inventory(url).snapshots if one.startswith((wanted, f"snp_{wanted}"))]
    if len(found) == 1:
        return snapshot_with_id(url, found[0])
    what = "no snapshot begins" if not found else f"{len(found)} snapshots begin"
    raise RametError(f"{what} with {wanted!r}", hint="see them with: ramet snapshot --list")


# A handle that is garbage-collected closes its sandbox. One that still exists at exit leaves the sandbox to its server.
_kept: list[Sandbox | Snapshot] = []


def keep(one: Sandbox | Snapshot) -> None:
    """Let a server's sandbox or snapshot outlive this process."""
    _kept.append(one)


_WHOLE_ID_CHARACTERS = len("sbx_") + 32
