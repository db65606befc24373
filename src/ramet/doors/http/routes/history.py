"""The past of a sandbox over HTTP: its points, undo, rewind."""

from __future__ import annotations

from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.requests.disconnects import ask
from ramet.doors.http.requests.exchange import RequestExchange, Route
from ramet.doors.http.requests.json_answers import answer_json
from ramet.doors.http.requests.queries import QueryFields
from ramet.protocol import calls
from ramet.protocol.requests.operations import RewindOptions, UndoOptions

_POINT = {
    "id": "p1",
    "kind": "cell",
    "cell_id": 1,
    "code": "x = 1",
    "outcome": "ok",
    "kept": True,
    "lost": False,
    "changed_bytes": 734003,
    "time_ms": 1767225600000,
    "note": "",
    "pause_seconds": 0.0021,
    "kept_in": "memory",
    "kept_bytes": 1782579,
}
_UNDONE = {"point": _POINT, "cell_ids": [2], "tool_calls": [], "connections": [], "writable_mounts": []}


@api.operation(
    "history",
    "history",
    "The past of a sandbox: a point for each cell, the oldest first",
    {
        200: api.answer(
            "The points, and whether more of them are taken.",
            api.ref("History"),
            {"points": [_POINT], "taking": "on", "note": "", "memory_bytes": 1782579, "disk_bytes": 0},
        )
    },
)
async def history(exchange: RequestExchange, sandbox_id: str) -> None:
    QueryFields(exchange.scope["query_string"]).done()
    frame = await ask(exchange, calls.HISTORY, {"sandbox": sandbox_id, "owner": exchange.owner})
    await answer_json(exchange, dict(frame.header))


@api.operation(
    "undo",
    "history",
    "Put a sandbox back to what it was before its last cells: memory, threads and files",
    {200: api.answer("Where it is now, and what could not be undone.", api.ref("Undone"), _UNDONE)},
    help="404 with `point_unknown` if that state is not kept. Tool calls, connections and writes to host folders are "
    "not undone.",
    body=api.options_body(UndoOptions, {"n": 1}),
)
async def undo(exchange: RequestExchange, sandbox_id: str) -> None:
    asked = await exchange.read_options(UndoOptions)
    frame = await ask(exchange, calls.UNDO, {"sandbox": sandbox_id, **asked.header(), "owner": exchange.owner})
    await answer_json(exchange, dict(frame.header))


@api.operation(
    "rewind",
    "history",
    "Put a sandbox back to what it was after a point of its history",
    {200: api.answer("Where it is now, and what could not be undone.", api.ref("Undone"), _UNDONE)},
    help="404 with `point_unknown` if there is no such point, or its state is not kept.",
    body=api.options_body(RewindOptions, {"point": "p1"}),
)
async def rewind(exchange: RequestExchange, sandbox_id: str) -> None:
    asked = await exchange.read_options(RewindOptions)
    frame = await ask(exchange, calls.REWIND, {"sandbox": sandbox_id, **asked.header(), "owner": exchange.owner})
    await answer_json(exchange, dict(frame.header))


_SANDBOX = "/v1/sandboxes/{sandbox_id}"

ROUTES: list[Route] = [
    ("GET", f"{_SANDBOX}/history", history),
    ("POST", f"{_SANDBOX}/undo", undo),
    ("POST", f"{_SANDBOX}/rewind", rewind),
]
