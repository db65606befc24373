"""What an operator's key may do beyond its own sandboxes: list, inspect and end the sandboxes of all keys.

It runs nothing in them and reads neither their files nor their output: a person who keeps a server running need not see
what its users do. The audit log records each inspection and each end.
"""

from __future__ import annotations

from collections.abc import Mapping

from ramet.doors.http.access.audit_log import INSPECT, LIST_ALL
from ramet.doors.http.requests.disconnects import ask
from ramet.doors.http.requests.exchange import RequestExchange
from ramet.protocol import calls, fields

CALLS = frozenset((calls.SANDBOXES, calls.INFO, calls.CLOSE))


async def rows(exchange: RequestExchange) -> list[dict[str, object]]:
    """All sandboxes, each with the name of its key."""
    exchange.log.action = LIST_ALL
    answer = await ask(exchange, calls.SANDBOXES, exchange.activity.seeing_header(exchange, {}))
    return [named(exchange, row) for row in fields.array(answer.header, "sandboxes") if isinstance(row, dict)]


def named(exchange: RequestExchange, row: Mapping[str, object]) -> dict[str, object]:
    """A sandbox's row with ``owner``, the id of its key, and ``key``, that key's name."""
    known = exchange.link.rows.get(str(row.get("id")))
    owner = row.get("owner") if known is None else known.owner
    return {**row, "owner": owner, "key": exchange.records.keys.name_of(owner) if isinstance(owner, str) else None}


def note(exchange: RequestExchange, sandbox_id: object) -> None:
    """Name the sandbox's key in the audit log, if an operator inspects or ends a sandbox of another key."""
    if not exchange.operates or not isinstance(sandbox_id, str):
        return
    row = exchange.link.rows.get(sandbox_id)
    if row is not None and row.owner != exchange.owner:
        exchange.log.action = exchange.log.action or INSPECT
        exchange.log.sandbox_key = exchange.records.keys.name_of(row.owner)
