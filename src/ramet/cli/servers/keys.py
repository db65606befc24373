"""Manage the API keys of a server: who may use it, and how much. A running server sees every change at once."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ramet.cli.output import duration, print_note, print_table
from ramet.cli.parsing import Commands, new_command
from ramet.cli.quantities import count_or_none, seconds
from ramet.cli.servers.options import add_state_option
from ramet.doors.http.access.audit_file import note_key_change
from ramet.doors.http.access.key_records import KeyChange, read_keys
from ramet.doors.http.access.keys import KeyLimits, KeyRow, Scope
from ramet.doors.http.access.network_bounds import read_bound
from ramet.doors.http.records import ServerRecords
from ramet.doors.http.settings import ServerSettings
from ramet.doors.http.state import DATABASE_NAME, prepare
from ramet.errors import InvalidArgument, RametError
from ramet.protocol.network.requests import rule_texts
from ramet.protocol.network.rules import NONE
from ramet.web.sqlite_store import now_ms
from ramet.web.state_folder import state_folder

_EXAMPLES = """\
examples:
  ramet keys create --name laptop                          prints the key, once
  ramet keys create --name ci --sandboxes 8 --memory-mib 16384 --expires 90d
  ramet keys create --name agents --network api.example --network '*.pypi.example'
  ramet keys create --name research --network open         all that is public, if its sandboxes ask for it
  ramet keys create --name admin --operator                lists and ends the sandboxes of all keys
  ramet keys create --name prometheus --metrics            for /metrics and nothing else
  ramet keys list --json
  ramet keys set ci --sandboxes 20 --memory-mib none       changes only what is given
  ramet keys rotate ci                                     a new secret; the old one works for another 24 hours
  ramet keys rotate ci --grace 0                           ... or ends at once, if it may have leaked
  ramet keys revoke laptop                                 at once; its sandboxes go on until they end
"""

_LIMITS = KeyLimits()
_IMAGE_HELP = "most disk for snapshots that it saves and sandboxes that it keeps there, or none for no limit"
_GRACE = "24h"
_NEVER = "never"


def add_command(commands: Commands) -> None:
    parser = new_command(commands, "keys", "manage the API keys of a server", __doc__, _EXAMPLES)
    parser.set_defaults(run=lambda _: _help(parser))
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    create = actions.add_parser("create", help="make a key and print it; it cannot be shown again")
    create.add_argument("--name", required=True, help="name of the key in lists, logs and metrics")
    create.add_argument(
        "--sandboxes",
        type=count_or_none,
        metavar="N",
        default=_LIMITS.sandboxes,
        help=f"most sandboxes at once, or none for no limit (default: {_LIMITS.sandboxes})",
    )
    create.add_argument(
        "--memory-mib",
        type=count_or_none,
        metavar="N",
        help="most memory of all its sandboxes together (default: no limit)",
    )
    create.add_argument(
        "--cells",
        type=count_or_none,
        metavar="N",
        default=_LIMITS.concurrent_cells,
        help=f"most cells running or waiting (default: {_LIMITS.concurrent_cells})",
    )
    create.add_argument(
        "--image-mib",
        type=count_or_none,
        metavar="N",
        default=_LIMITS.image_mib,
        help=f"{_IMAGE_HELP} (default: {_LIMITS.image_mib})",
    )
    create.add_argument(
        "--network",
        action="append",
        default=[],
        metavar="none|open|RULE",
        help="the most that its sandboxes may reach; repeat for several rules (default: none)",
    )
    create.add_argument("--expires", type=_expiry, metavar="30d|never", help="lifetime of the key (default: never)")
    scope = create.add_mutually_exclusive_group()
    scope.add_argument("--metrics", action="store_true", help="open /metrics only, and no sandbox")
    scope.add_argument("--operator", action="store_true", help="also list and end the sandboxes of all keys")
    create.set_defaults(run=_create)
    listed = actions.add_parser("list", help="list all keys in use")
    listed.set_defaults(run=_list)
    changed = actions.add_parser("set", help="change the limits or the end of a key; options left out stay unchanged")
    changed.add_argument("key", metavar="ID|NAME")
    for option, what in (
        ("--sandboxes", "most sandboxes at once, or none for no limit"),
        ("--memory-mib", "most memory of all its sandboxes together, or none for no limit"),
        ("--cells", "most cells running or waiting, or none for no limit"),
        ("--image-mib", _IMAGE_HELP),
    ):
        changed.add_argument(option, type=count_or_none, metavar="N", default=argparse.SUPPRESS, help=what)
    changed.add_argument(
        "--network",
        action="append",
        metavar="none|open|RULE",
        help="the most that new sandboxes may reach, instead of what it was; repeat for several rules",
    )
    changed.add_argument("--expires", type=_expiry, metavar="30d|never", help="lifetime of the key from now on")
    changed.set_defaults(run=_set)
    rotate = actions.add_parser("rotate", help="give a key a new secret and print it; the old one works for a while")
    rotate.add_argument("key", metavar="ID|NAME")
    rotate.add_argument(
        "--grace", type=seconds, metavar="24h", default=seconds(_GRACE), help="time that the old secret still works; "
        f"0 ends it at once (default: {_GRACE})",
    )  # fmt: skip
    rotate.add_argument("--expires", type=_expiry, metavar="30d|never", help="lifetime of the key from now on")
    rotate.set_defaults(run=_rotate)
    revoke = actions.add_parser("revoke", help="end a key at once")
    revoke.add_argument("key", metavar="ID|NAME")
    revoke.set_defaults(run=_revoke)
    for one in (create, listed, changed, rotate, revoke):
        one.add_argument("--json", action="store_true", help="print JSON")
        add_state_option(one)


def _expiry(text: str) -> float:
    """Parse an expiry as seconds from now. Infinity means never; None is left for an option that was not given."""
    if text == _NEVER:
        return float("inf")
    length = seconds(text)
    if length <= 0:
        raise argparse.ArgumentTypeError(f"must be more than 0, or {_NEVER}, got {text!r}")
    return length


def _help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


@contextmanager
def _records(chosen: argparse.Namespace, make: bool = False) -> Iterator[ServerRecords]:
    """Open the records of a server. ``make``: also for a state folder that does not exist yet."""
    folder = state_folder(chosen.state)
    if not make:
        _database(chosen)
    prepare(folder)
    records = ServerRecords(folder / DATABASE_NAME)
    try:
        yield records
    finally:
        records.close()


def _database(chosen: argparse.Namespace) -> Path:
    """Return the path to the records of an existing server."""
    folder = state_folder(chosen.state)
    if not (folder / DATABASE_NAME).exists():
        raise InvalidArgument(
            f"{folder} is not the state folder of a server",
            hint="name the folder with --state or RAMET_STATE, or make a first key with: ramet keys create",
            details={"argument": "state"},
        )
    return folder / DATABASE_NAME


def _create(chosen: argparse.Namespace) -> int:
    limits = KeyLimits(
        sandboxes=chosen.sandboxes,
        memory_mib=chosen.memory_mib,
        concurrent_cells=chosen.cells,
        image_mib=chosen.image_mib,
    )
    network = read_bound(chosen.network)
    scope: Scope = "metrics" if chosen.metrics else "operator" if chosen.operator else "sandboxes"
    with _records(chosen, make=True) as records:
        row, secret = records.keys.create(chosen.name, limits, scope, network, _change(chosen).expires_ms)
    _note(chosen, "key create", row)
    _show_secret(chosen, row, secret, f"This is the key {row.name!r} ({row.id}). It is not shown again.")
    return 0


def _list(chosen: argparse.Namespace) -> int:
    rows = read_keys(_database(chosen))
    if chosen.json:
        print(json.dumps([_facts(row) for row in rows], indent=2))
        return 0
    if not rows:
        print_note("There are no keys. Make one: ramet keys create --name NAME")
        return 0
    titles = ("ID", "NAME", "SCOPE", "SANDBOXES", "MEMORY MIB", "CELLS", "NETWORK", "CREATED", "EXPIRES", "LAST USED")
    print_table(titles, [_columns(row) for row in rows])
    return 0


_LIMIT_OPTIONS = (
    ("sandboxes", "sandboxes"),
    ("memory_mib", "memory_mib"),
    ("cells", "concurrent_cells"),
    ("image_mib", "image_mib"),
)


def _set(chosen: argparse.Namespace) -> int:
    limits = {field: getattr(chosen, option) for option, field in _LIMIT_OPTIONS if hasattr(chosen, option)}
    change = replace(_change(chosen), limits=limits)
    if chosen.network is not None:
        change = replace(change, network=read_bound(chosen.network))
    if change == KeyChange():
        raise InvalidArgument(
            "nothing to change was given",
            hint="give one of --sandboxes, --memory-mib, --cells, --network, --expires",
        )
    with _records(chosen) as records:
        row = records.keys.change(chosen.key, change)
    if row is None:
        raise _unknown(chosen.key)
    _note(chosen, "key set", row)
    print(json.dumps(_facts(row)) if chosen.json else f"Key {row.name!r} ({row.id}) was changed.")
    return 0


def _rotate(chosen: argparse.Namespace) -> int:
    change = _change(chosen)
    with _records(chosen) as records:
        rotated = records.keys.rotate(chosen.key, chosen.grace, change)
    if rotated is None:
        raise _unknown(chosen.key)
    row, secret = rotated
    _note(chosen, "key rotate", row, grace_seconds=chosen.grace)
    old = f"works for another {duration(chosen.grace)}" if chosen.grace else "does not work any more"
    _show_secret(chosen, row, secret, f"This is the new key {row.name!r} ({row.id}). The old one {old}.")
    return 0


def _revoke(chosen: argparse.Namespace) -> int:
    with _records(chosen) as records:
        row = records.keys.revoke(chosen.key)
    if row is None:
        raise _unknown(chosen.key)
    _note(chosen, "key revoke", row)
    print(json.dumps(_facts(row)) if chosen.json else f"Key {row.name!r} ({row.id}) is not valid any more.")
    return 0


def _change(chosen: argparse.Namespace) -> KeyChange:
    """Return the change that --expires asks for."""
    length: float | None = chosen.expires
    if length is None:
        return KeyChange()
    if length == float("inf"):
        return KeyChange(never_expires=True)
    return KeyChange(expires_ms=now_ms() + int(length * 1000))


def _show_secret(chosen: argparse.Namespace, row: KeyRow, secret: str, words: str) -> None:
    if chosen.json:
        print(json.dumps({**_facts(row), "key": secret}))
    else:
        print(secret)
        # The note must not contain the key: standard error ends up in the logs of scripts that store standard output.
        print_note(f"{words}\nClients need it in their environment: export RAMET_API_KEY=KEY")


def _note(chosen: argparse.Namespace, action: str, row: KeyRow, **more: object) -> None:
    """Write a line to the audit log. If that fails, the change stays."""
    facts = {"key": row.name, "key_id": row.id, "scope": row.scope, "limits": row.limits.header(), **more}
    facts |= {"network": " ".join(rule_texts(row.network))[:500], "expires_ms": row.expires_ms}
    try:
        note_key_change(state_folder(chosen.state), ServerSettings("").audit_bytes, action, facts)
    except OSError as error:
        print_note(f"ramet: the key was changed, but cannot write the audit log: {error.strerror}")


def _unknown(key: str) -> RametError:
    return RametError(f"there is no key {key!r} in use", hint="see them with: ramet keys list")


def _facts(row: KeyRow) -> dict[str, object]:
    return {
        "id": row.id,
        "name": row.name,
        "scope": row.scope,
        "limits": row.limits.header(),
        "network": rule_texts(row.network),
        "created_ms": row.created_ms,
        "revoked_ms": row.revoked_ms,
        "expires_ms": row.expires_ms,
        "last_used_ms": row.last_used_ms,
    }


def _columns(row: KeyRow) -> tuple[str, ...]:
    def shown(limit: int | None) -> str:
        return "-" if limit is None else str(limit)

    limits = row.limits
    return (
        row.id,
        row.name,
        row.scope,
        shown(limits.sandboxes),
        shown(limits.memory_mib),
        shown(limits.concurrent_cells),
        " ".join(rule_texts(row.network)) or NONE,
        _minute(row.created_ms),
        _NEVER if row.expires_ms is None else "expired" if row.expired(now_ms()) else _minute(row.expires_ms),
        _NEVER if row.last_used_ms is None else _minute(row.last_used_ms),
    )


def _minute(moment_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment_ms / 1000))
