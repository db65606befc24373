"""Snapshots over HTTP: take, list, restore, save as a template, drop; and the difference of two sandboxes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ramet.errors import SandboxClosed
from ramet.protocol import calls, checks, fields
from ramet.protocol.frames import encode
from ramet.server import making
from ramet.server.answers import ENTRY_BYTES, answer_json, answer_long_json, answer_nothing
from ramet.server.departures import ask, ends_with_client
from ramet.server.errors import Refused
from ramet.server.exchange import Exchange, Route
from ramet.server.queries import Query


async def take(exchange: Exchange, sandbox_id: str) -> None:
    (await exchange.read_fields()).done()
    frame = await ask(exchange, calls.SNAPSHOT, {"sandbox": sandbox_id, "owner": exchange.owner})
    await answer_json(exchange, {"id": fields.text(frame.header, "id")}, status=201)


async def restore(exchange: Exchange, sandbox_id: str) -> None:
    body = await exchange.read_fields()
    snapshot_id = body.text("snapshot")
    body.done()
    with _telling_of(snapshot_id):
        header = {"sandbox": sandbox_id, "snapshot": snapshot_id, "owner": exchange.owner}
        await ask(exchange, calls.RESTORE, header)
    await answer_nothing(exchange)


async def list_snapshots(exchange: Exchange) -> None:
    Query(exchange.scope["query_string"]).done()
    # The first event of a subscription lists everything. Leaving the call ends the subscription.
    async with exchange.link.call() as call:
        await call.send(encode(calls.WATCH, {"owner": exchange.owner}))
        async for frame in call.frames():
            if frame.kind == calls.ERROR:
                raise calls.read_error(frame.header)
            break
    rows = [row for row in fields.array(frame.header, "snapshots") if isinstance(row, dict)]
    mine = [{"id": fields.text(row, "id")} for row in rows if row.get("owner") == exchange.owner]
    await answer_json(exchange, {"snapshots": mine})


async def save(exchange: Exchange, snapshot_id: str) -> None:
    body = await exchange.read_fields()
    name = body.text("name")
    body.done()
    checks.check_template_name(name)
    with _telling_of(snapshot_id):
        header = {"snapshot": snapshot_id, "name": name, "owner": exchange.owner}
        await ask(exchange, calls.SAVE, making.allowed(exchange, header))
    await answer_nothing(exchange)


async def drop(exchange: Exchange, snapshot_id: str) -> None:
    """Drop a snapshot. Succeeds even if there is no such snapshot, so that it can be repeated."""
    try:
        await ask(exchange, calls.DROP, {"snapshot": snapshot_id, "owner": exchange.owner})
    except SandboxClosed:
        pass
    await answer_nothing(exchange)


async def diff(exchange: Exchange, sandbox_id: str, other_id: str) -> None:
    query = Query(exchange.scope["query_string"])
    paths = query.texts("path")
    query.done()
    compared = checks.check_compared_paths(paths) if paths else None
    other = "snapshot" if other_id.startswith("snp_") else "other"
    header = {"sandbox": sandbox_id, other: other_id, "paths": compared, "owner": exchange.owner}
    files: list[object] = []
    names: list[object] = []
    async with exchange.link.call() as call:
        await call.send(encode(calls.DIFF, header))
        with ends_with_client(exchange, call):  # a comparison can take long, so a disconnect ends it
            async for frame in call.frames():
                if frame.kind == calls.ERROR:
                    raise calls.read_error(frame.header)
                if frame.kind == calls.CHANGES:
                    some_files, some_names = fields.array(frame.header, "files"), fields.array(frame.header, "names")
                    exchange.hold(ENTRY_BYTES * (len(some_files) + len(some_names)))
                    files += some_files
                    names += some_names
    uncompared = fields.array(frame.header, "uncompared")
    await answer_long_json(exchange, {"files": files, "names": names, "uncompared": uncompared}, files, names)


@contextmanager
def _telling_of(snapshot_id: str) -> Iterator[None]:
    """Turn the engine's error about an unknown snapshot into one that is not about an unknown sandbox."""
    try:
        yield
    except SandboxClosed as error:
        if "cause" not in error.details and snapshot_id in error.message:
            raise Refused(404, "snapshot not found", code=SandboxClosed.code) from None
        raise


_SANDBOX = "/v1/sandboxes/{sandbox_id}"

ROUTES: list[Route] = [
    ("POST", f"{_SANDBOX}/snapshots", take),
    ("POST", f"{_SANDBOX}/restore", restore),
    ("GET", f"{_SANDBOX}/diff/{{other_id}}", diff),
    ("GET", "/v1/snapshots", list_snapshots),
    ("POST", "/v1/snapshots/{snapshot_id}/save", save),
    ("DELETE", "/v1/snapshots/{snapshot_id}", drop),
]
