"""Where the sandboxes are that a command is about: at a server, or in an engine of the command's own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ramet.client.sandbox import Sandbox
from ramet.errors import RametError, Unreachable

DEFAULT_URL = "http://127.0.0.1:7070"

_WITHOUT = "this command is about sandboxes that a server keeps, and there is none at"
_HINT = "start one: ramet serve; or name yours: export RAMET_URL=http://HOST:PORT RAMET_API_KEY=KEY"


def add_server_option(parser: argparse.ArgumentParser, default: str = DEFAULT_URL) -> None:
    # No option for the key: everybody on the machine can read a command line.
    shown = f"of the server; its key in RAMET_API_KEY (default: $RAMET_URL, or {default})"
    parser.add_argument("--url", help=shown)


def chosen_url(chosen: argparse.Namespace) -> str | None:
    """None: no server was named."""
    return chosen.url or os.environ.get("RAMET_URL") or None


@contextmanager
def server(chosen: argparse.Namespace) -> Iterator[str]:
    """The URL of the server that a command needs: the one named, or the usual one. What is missing is said."""
    named = chosen_url(chosen)
    url = named or DEFAULT_URL
    try:
        yield url
    except Unreachable as error:
        if named is None:
            raise Unreachable(f"{_WITHOUT} {url}", hint=_HINT, details=error.details) from error
        raise


def find(url: str, wanted: str) -> Sandbox:
    """A handle of a sandbox by its id, or by the beginning of its id."""
    return Sandbox.connect(full_id(url, wanted), url=url)


def full_id(url: str, wanted: str) -> str:
    """Ids are long: as much of one as is enough will do."""
    if len(wanted) >= _WHOLE_ID_CHARACTERS:
        return wanted
    found = [row.id for row in Sandbox.list_all(url=url) if row.id.startswith((wanted, f"sbx_{wanted}"))]
    if len(found) == 1:
        return found[0]
    what = "no sandbox begins" if not found else f"{len(found)} sandboxes begin"
    raise RametError(f"{what} with {wanted!r}", hint="see them with: ramet ps")


# A handle that is forgotten closes its sandbox; one that is there when the process ends leaves it to its server.
_kept: list[Sandbox] = []


def keep(sandbox: Sandbox) -> None:
    """A sandbox of a server is to outlive this process."""
    _kept.append(sandbox)


_WHOLE_ID_CHARACTERS = len("sbx_") + 32
