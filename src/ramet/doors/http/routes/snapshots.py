"""Snapshots over HTTP: take, list, restore, save, drop; how sandboxes differ, and what one takes from another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.requests.disconnects import ask, ends_with_client
from ramet.doors.http.requests.errors import RequestRefused
from ramet.doors.http.requests.exchange import RequestExchange, Route
from ramet.doors.http.requests.json_answers import ENTRY_BYTES, answer_json, answer_long_json, answer_nothing
from ramet.doors.http.requests.queries import QueryFields
from ramet.doors.http.routes import creation
from ramet.errors import SandboxClosed
from ramet.protocol import calls, checks, fields
from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.frames import encode
from ramet.protocol.requests.operations import TakeOptions

_ADDED_FILE = {
    "path": "/root/a.txt",
    "change": "added",
    "before": None,
    "after": {"type": "file", "size_bytes": 3, "mode": 420, "digest": None, "target": None},
}


@api.operation(
    "takeSnapshot",
    "forks",
    "Freeze what a sandbox is now",
    {201: api.answer("The snapshot.", api.record({"id": api.text()}), {"id": api.SNAPSHOT_ID})},
    body=api.EMPTY_BODY,
)
async def take(exchange: RequestExchange, sandbox_id: str) -> None:
    (await exchange.read_fields()).done()
    frame = await ask(exchange, calls.SNAPSHOT, {"sandbox": sandbox_id, "owner": exchange.owner})
    await answer_json(exchange, {"id": fields.text(frame.header, "id")}, status=201)


@api.operation(
    "restore",
    "forks",
    "Put a sandbox back to what a snapshot is",
    {204: api.DONE},
    body=api.body(api.record({"snapshot": api.text()}), {"snapshot": api.SNAPSHOT_ID}),
)
async def restore(exchange: RequestExchange, sandbox_id: str) -> None:
    body = await exchange.read_fields()
    snapshot_id = body.text("snapshot")
    body.done()
    with _telling_of(snapshot_id):
        header = {"sandbox": sandbox_id, "snapshot": snapshot_id, "owner": exchange.owner}
        await ask(exchange, calls.RESTORE, header)
    await answer_nothing(exchange)


@api.operation(
    "listSnapshots",
    "forks",
    "Your snapshots",
    {
        200: api.answer(
            "All there are.",
            api.record({"snapshots": api.array(api.record({"id": api.text()}))}),
            {"snapshots": [{"id": api.SNAPSHOT_ID}]},
        )
    },
    errors=(400, 401, 403, 503),
)
async def list_snapshots(exchange: RequestExchange) -> None:
    QueryFields(exchange.scope["query_string"]).done()
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


@api.operation(
    "saveSnapshot",
    "forks",
    "Make a snapshot a template, by a name",
    {204: api.DONE},
    body=api.body(
        api.record(
            {
                "name": api.text(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"),
                "disk": api.flag("on disk, in the place of what was saved by this name before"),
            },
            required=("name",),
        ),
        {"name": "with-my-data", "disk": True},
    ),
    errors=(400, 401, 403, 404, 409, 413, 429, 503),
)
async def save(exchange: RequestExchange, snapshot_id: str) -> None:
    body = await exchange.read_fields()
    name, disk = body.text("name"), body.flag("disk", False)
    body.done()
    checks.check_template_name(name)
    with _telling_of(snapshot_id):
        header = {"snapshot": snapshot_id, "name": name, "disk": disk, "owner": exchange.owner}
        await ask(exchange, calls.SAVE, creation.allowed(exchange, header))
    await answer_nothing(exchange)


@api.operation(
    "dropSnapshot",
    "forks",
    "Let go of a snapshot",
    {204: api.DONE},
    help="Sandboxes and templates made from it stay. Also of one that is not there.",
    errors=(401, 403, 503),
)
async def drop(exchange: RequestExchange, snapshot_id: str) -> None:
    """Drop a snapshot. Succeeds even if there is no such snapshot, so that it can be repeated."""
    try:
        await ask(exchange, calls.DROP, {"snapshot": snapshot_id, "owner": exchange.owner})
    except SandboxClosed:
        pass
    await answer_nothing(exchange)


@api.operation(
    "removeTemplate",
    "forks",
    "Remove what was saved by a name, from memory and from disk",
    {204: api.DONE},
    help="Sandboxes made from it stay. Also of a name by which nothing is saved; another key's names are not yours.",
    errors=(400, 401, 403, 503),
)
async def remove_saved(exchange: RequestExchange, template: str) -> None:
    """Remove a saved snapshot. Succeeds even if there is none, so that it can be repeated."""
    checks.check_template_name(template)
    await ask(exchange, calls.DROP, {"name": template, "owner": exchange.owner})
    await answer_nothing(exchange)


@api.operation(
    "diff",
    "forks",
    "What differs in another sandbox, or has changed since a snapshot: files and names",
    {
        200: api.answer(
            "What would have to change here to make it the other.",
            api.ref("Diff"),
            {
                "files": [_ADDED_FILE],
                "names": [],
                "uncompared": [],
            },
        )
    },
    parameters=[
        api.query(
            "other_id",
            "The other sandbox; or a snapshot, for what has changed in this one since.",
            api.text(pattern="^(sbx|snp)_[0-9a-f]{32}$"),
            place="path",
            required=True,
            example="sbx_fedcba9876543210fedcba9876543210",
        ),
        api.query(
            "path",
            "Compare only what is here; may be given several times.",
            api.array(api.text(minLength=1, maxLength=4095), maxItems=1000),
            style="form",
            explode=True,
        ),
    ],
)
async def diff(exchange: RequestExchange, sandbox_id: str, other_id: str) -> None:
    query = QueryFields(exchange.scope["query_string"])
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


@api.operation(
    "take",
    "forks",
    "Variables and files of another sandbox, or of a snapshot, come into this one: all of them or none",
    {
        200: api.answer(
            "What has come.", api.ref("Taken"), {"names": ["score"], "files": [_ADDED_FILE], "size_bytes": 131}
        )
    },
    help="409 with `merge_conflict` where both have changed the same, and nothing is taken; `details` lists what. "
    "`undo` takes it back.",
    body=api.options_body(TakeOptions, {"names": ["score"], "files": ["report.md", "plots/*.png"]}, required=True),
    parameters=[
        api.query(
            "source_id",
            "The sandbox, or the snapshot, that has them.",
            api.text(pattern="^(sbx|snp)_[0-9a-f]{32}$"),
            place="path",
            required=True,
            example="sbx_fedcba9876543210fedcba9876543210",
        )
    ],
    errors=(400, 401, 403, 404, 409, 413, 422, 429, 503),
)
async def take_from(exchange: RequestExchange, sandbox_id: str, source_id: str) -> None:
    asked = await exchange.read_options(TakeOptions)
    if sandbox_id == source_id:
        raise wrong_argument("source", "source must be another sandbox, got the sandbox itself")
    source = "snapshot" if source_id.startswith("snp_") else "source"
    header = {"sandbox": sandbox_id, source: source_id, "owner": exchange.owner, **asked.header()}
    changes: list[object] = []
    async with exchange.link.call() as call:
        await call.send(encode(calls.TAKE, header))
        with ends_with_client(exchange, call):
            async for frame in call.frames():
                if frame.kind == calls.ERROR:
                    raise calls.read_error(frame.header)
                if frame.kind == calls.CHANGES:
                    some = fields.array(frame.header, "files")
                    exchange.hold(ENTRY_BYTES * len(some))
                    changes += some
    taken = {"names": frame.header["names"], "files": changes, "size_bytes": frame.header["size_bytes"]}
    await answer_long_json(exchange, taken, changes)


@contextmanager
def _telling_of(snapshot_id: str) -> Iterator[None]:
    """Turn the engine's error about an unknown snapshot into one that is not about an unknown sandbox."""
    try:
        yield
    except SandboxClosed as error:
        if "cause" not in error.details and snapshot_id in error.message:
            raise RequestRefused(404, "snapshot not found", code=SandboxClosed.code) from None
        raise


_SANDBOX = "/v1/sandboxes/{sandbox_id}"

ROUTES: list[Route] = [
    ("POST", f"{_SANDBOX}/snapshots", take),
    ("POST", f"{_SANDBOX}/restore", restore),
    ("GET", f"{_SANDBOX}/diff/{{other_id}}", diff),
    ("POST", f"{_SANDBOX}/take/{{source_id}}", take_from),
    ("GET", "/v1/snapshots", list_snapshots),
    ("POST", "/v1/snapshots/{snapshot_id}/save", save),
    ("DELETE", "/v1/snapshots/{snapshot_id}", drop),
    ("DELETE", "/v1/templates/{template}", remove_saved),
]
