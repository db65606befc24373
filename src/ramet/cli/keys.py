"""ramet keys: who may use a server, and how much. A running server knows of changes at once."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ramet.cli.output import print_note, print_table
from ramet.cli.serve import add_state_option
from ramet.errors import InvalidArgument, RametError
from ramet.protocol.network_requests import rule_texts
from ramet.protocol.rules import NONE
from ramet.server.bounds import read_bound
from ramet.server.keys import KeyLimits, KeyRow
from ramet.server.records import Records
from ramet.server.state import DATABASE_NAME, prepare, state_folder

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = """\
examples:
  ramet keys create --name laptop                          prints the key, once
  ramet keys create --name ci --sandboxes 8 --memory-mib 16384
  ramet keys create --name agents --network api.example --network '*.pypi.example'
  ramet keys create --name research --network open         all that is public, if its sandboxes ask for it
  ramet keys create --name prometheus --metrics            for /metrics and nothing else
  ramet keys list --json
  ramet keys revoke laptop                                 at once; its sandboxes go on until they end
"""

_LIMITS = KeyLimits()


def add_command(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "keys",
        help="who may use a server",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=lambda _: _help(parser))
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    create = actions.add_parser("create", help="make a key and print it; it cannot be shown again")
    create.add_argument("--name", required=True, help="to know it by, in lists, logs and metrics")
    create.add_argument("--sandboxes", type=int, metavar="N", default=_LIMITS.sandboxes, help="at once (default: 100)")
    create.add_argument("--memory-mib", type=int, metavar="N", help="of all its sandboxes together (default: no limit)")
    create.add_argument(
        "--cells",
        type=int,
        metavar="N",
        default=_LIMITS.concurrent_cells,
        help=f"running or waiting (default: {_LIMITS.concurrent_cells})",
    )
    create.add_argument(
        "--network",
        action="append",
        default=[],
        metavar="none|open|RULE",
        help="the most that its sandboxes may reach; repeat for several rules (default: none)",
    )
    create.add_argument("--metrics", action="store_true", help="only for /metrics, for no sandbox")
    create.add_argument("--json", action="store_true", help="as one JSON object")
    create.set_defaults(run=_create)
    listed = actions.add_parser("list", help="all keys in use")
    listed.add_argument("--json", action="store_true", help="as a JSON array")
    listed.set_defaults(run=_list)
    revoke = actions.add_parser("revoke", help="end a key")
    revoke.add_argument("key", metavar="ID|NAME")
    revoke.add_argument("--json", action="store_true", help="as one JSON object")
    revoke.set_defaults(run=_revoke)
    for one in (create, listed, revoke):
        add_state_option(one)


def _help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


@contextmanager
def _records(chosen: argparse.Namespace, make: bool = False) -> Iterator[Records]:
    folder = state_folder(chosen.state)
    if not make and not (folder / DATABASE_NAME).exists():
        raise InvalidArgument(
            f"state: {folder} is no state folder of a server",
            hint="name the folder with --state or RAMET_STATE; the first key in it is made with: ramet keys create",
            details={"argument": "state"},
        )
    prepare(folder)
    records = Records(folder / DATABASE_NAME)
    try:
        yield records
    finally:
        records.close()


def _create(chosen: argparse.Namespace) -> int:
    limits = KeyLimits(sandboxes=chosen.sandboxes, memory_mib=chosen.memory_mib, concurrent_cells=chosen.cells)
    network = read_bound(chosen.network)
    with _records(chosen, make=True) as records:
        row, secret = records.create_key(chosen.name, limits, "metrics" if chosen.metrics else "sandboxes", network)
    if chosen.json:
        print(json.dumps({**_facts(row), "key": secret}))
    else:
        print(secret)
        print_note(f"This is the key {row.name!r} ({row.id}). It is not shown again.\nUse it: RAMET_API_KEY={secret}")
    return 0


def _list(chosen: argparse.Namespace) -> int:
    with _records(chosen) as records:
        rows = records.list_keys()
    if chosen.json:
        print(json.dumps([_facts(row) for row in rows], indent=2))
        return 0
    if not rows:
        print_note("There are no keys. Make one: ramet keys create --name NAME")
        return 0
    titles = ("ID", "NAME", "SCOPE", "SANDBOXES", "MEMORY MIB", "CELLS", "NETWORK", "CREATED")
    print_table(titles, [_columns(row) for row in rows])
    return 0


def _revoke(chosen: argparse.Namespace) -> int:
    with _records(chosen) as records:
        row = records.revoke_key(chosen.key)
    if row is None:
        raise RametError(f"there is no key {chosen.key!r} in use", hint="see them with: ramet keys list")
    print(json.dumps(_facts(row)) if chosen.json else f"Key {row.name!r} ({row.id}) is not valid any more.")
    return 0


def _facts(row: KeyRow) -> dict[str, object]:
    return {
        "id": row.id,
        "name": row.name,
        "scope": row.scope,
        "limits": row.limits.header(),
        "network": rule_texts(row.network),
        "created_ms": row.created_ms,
        "revoked_ms": row.revoked_ms,
    }


def _columns(row: KeyRow) -> tuple[str, ...]:
    def shown(limit: int | None) -> str:
        return "-" if limit is None else str(limit)

    created = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.created_ms / 1000))
    limits = row.limits
    return (
        row.id,
        row.name,
        row.scope,
        shown(limits.sandboxes),
        shown(limits.memory_mib),
        shown(limits.concurrent_cells),
        " ".join(rule_texts(row.network)) or NONE,
        created,
    )
