"""Sandboxes over HTTP: create, list, fork, merge, extend, end; and the route that names the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ramet.doors.http.access import operator
from ramet.doors.http.documentation import openapi_parts as api
from ramet.doors.http.documentation.openapi_schemas import options_schema
from ramet.doors.http.requests import bodies, idempotency, json_answers
from ramet.doors.http.requests.disconnects import ask
from ramet.doors.http.requests.exchange import JSON, RequestExchange, Route
from ramet.doors.http.requests.idempotency import StoredAnswer
from ramet.doors.http.routes.creation import EngineSaid, Making, creating, forking, make, resuming, thawing
from ramet.protocol import calls, fields
from ramet.protocol.argument_errors import kind_of, must, unknown_field, wrong_argument
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder
from ramet.protocol.network.requests import network_request, rule_texts, secrets_request
from ramet.protocol.requests.operations import ForkOptions
from ramet.protocol.requests.options import options_of, read_option
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.protocol.values.specs import Lifetime

_MIB_PER_GB = 1024
# By the names that the fields have over HTTP. Those for embedded sandboxes only are refused with words of their own.
_OPTIONS = {option.http_name or name: name for name, option in options_of(SandboxOptions).items()}
# Those that can be given again, or changed later.
_RESUMED = ("timeout_seconds", "idle_timeout_seconds", "persistent", "network", "secrets")
_EXTENDED = ("timeout_seconds", "idle_timeout_seconds")


# Making


@api.operation(
    "create",
    "sandboxes",
    "Make a sandbox",
    {201: api.answer("It is ready for cells.", api.ref("Created"), {"id": api.SANDBOX_ID, "state": "ready"})},
    body=api.body(
        api.ref("NewSandbox"), {"template": "default", "timeout_seconds": 1800, "memory_mib": 512}, required=False
    ),
    parameters=[api.parameter("IdempotencyKey")],
    errors=(400, 401, 403, 404, 409, 410, 413, 422, 429, 503),
)
async def _create(exchange: RequestExchange) -> None:
    """POST /v1/sandboxes"""
    data = await exchange.read_body(2 * exchange.settings.body_bytes)
    asked = bodies.parse_object(data)
    snapshot = asked.pop("snapshot", None)
    options = _sandbox_options(asked)
    if snapshot is None:
        making = creating(exchange, options)
    elif isinstance(snapshot, str):
        making = thawing(exchange, options, snapshot)
    else:
        raise must("snapshot", "be the id of a snapshot, a string", kind_of(snapshot))
    await _make(exchange, making, data, persistent=options.persistent)


def _sandbox_options(asked: dict[str, object]) -> SandboxOptions:
    """Our fields, and the published client's names for them. A field that is null counts as missing."""
    given = {name: value for name, value in asked.items() if value is not None}
    for theirs, ours, factor in (("ram_mib", "memory_mib", 1), ("rootfs_gb", "disk_mib", _MIB_PER_GB)):
        if theirs not in given:
            continue
        if ours in given:
            raise wrong_argument(theirs, f"{theirs} and {ours} mean the same; give only one of them")
        value = given.pop(theirs)
        if type(value) not in (int, float) or value != value or abs(float(value)) > 2**40:  # type: ignore[arg-type]
            raise must(theirs, "be a number", value)
        given[ours] = int(value * factor)  # type: ignore[operator]
    unknown = given.keys() - _OPTIONS.keys()
    known = options_of(SandboxOptions)
    if unknown:
        usable = [field for field, name in _OPTIONS.items() if not known[name].embedded_only]
        raise unknown_field(min(unknown), ("snapshot", "ram_mib", "rootfs_gb", *usable))
    values = {_OPTIONS[field]: read_option(known[_OPTIONS[field]], field, value) for field, value in given.items()}
    return SandboxOptions(**values)


async def _make(
    exchange: RequestExchange, making: Making, fingerprint: bytes, persistent: bool = False, children: bool = False
) -> None:
    """Make sandboxes, once for each Idempotency-Key, and answer with their ids."""
    path = exchange.scope["path"].encode("utf-8", "surrogateescape")

    async def work() -> StoredAnswer:
        try:
            frame = await make(exchange, making)
        except EngineSaid as refusal:
            raise refusal.error from None
        answer = next(FrameDecoder(FROM_ENGINE).feed(frame))
        told = _children(answer) if children else _sandbox(answer, persistent)
        return StoredAnswer(201, "application/json", json_answers.encode(told))

    key = exchange.header(b"idempotency-key")
    stored = await idempotency.once(exchange.records, exchange.owner, key, path + b"\n" + fingerprint, work)
    await exchange.respond(stored.status, JSON, stored.body)


def _sandbox(answer: Frame, persistent: bool) -> dict[str, object]:
    sandbox_id = fields.text(answer.header, "id")
    # A persistent sandbox is resumed under its own id.
    return {"id": sandbox_id, "state": "ready", **({"space_id": sandbox_id} if persistent else {})}


def _children(answer: Frame) -> dict[str, object]:
    ids = [child["id"] for child in fields.array(answer.header, "children") if isinstance(child, dict)]
    return {"children": ids, "info": answer.header.get("info")}


@api.operation(
    "fork",
    "forks",
    "Copies of a running sandbox, with all its memory and files",
    {
        201: api.answer(
            "The copies.",
            api.record(
                {
                    "children": api.array(api.text()),
                    "info": api.mapping(
                        help="What the fork cost: pause_seconds, total_seconds, unique_bytes, file_bytes_copied.",
                        null=True,
                    ),
                },
                required=("children",),
            ),
            {"children": ["sbx_fedcba9876543210fedcba9876543210"]},
        )
    },
    body=api.options_body(ForkOptions, {"n": 3}),
    parameters=[api.parameter("IdempotencyKey")],
)
async def _fork(exchange: RequestExchange, sandbox_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/fork"""
    data = await exchange.read_body()
    asked = bodies.JsonBody(bodies.parse_object(data)).options(ForkOptions)
    await _make(exchange, forking(exchange, sandbox_id, asked), data, children=True)


@api.operation(
    "mergeInto",
    "forks",
    "The state of `winner_id` takes the place of this sandbox's",
    {204: api.DONE},
    help="Afterwards the winner's id is gone.",
    body=api.EMPTY_BODY,
    parameters=[
        api.query(
            "winner_id",
            "The sandbox whose state goes on.",
            api.text(pattern="^sbx_[0-9a-f]{32}$"),
            place="path",
            required=True,
            example="sbx_fedcba9876543210fedcba9876543210",
        )
    ],
)
async def _merge(exchange: RequestExchange, sandbox_id: str, winner_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/merge_into/{winner_id}: the winner's state gets the other's id."""
    (await exchange.read_fields()).done()
    if sandbox_id == winner_id:
        raise wrong_argument("winner", "winner must be another sandbox, got the sandbox itself")
    header = exchange.activity.header(exchange, {"sandbox": sandbox_id, "winner": winner_id})
    await ask(exchange, calls.MERGE, header)
    await json_answers.answer_nothing(exchange)


@api.operation(
    "resume",
    "forks",
    "A new sandbox from what a persistent one was when it ended",
    {201: api.answer("It is ready for cells.", api.ref("Created"), {"id": api.SANDBOX_ID, "state": "ready"})},
    body=api.body(
        options_schema(
            _RESUMED,
            {
                "persistent": "",
                "network": "As for a new sandbox: it is not what the ended one had.",
                "secrets": "As for a new sandbox.",
            },
        ),
        {},
        required=False,
    ),
    parameters=[api.parameter("IdempotencyKey")],
)
async def _resume(exchange: RequestExchange, space_id: str) -> None:
    """POST /v1/spaces/{space_id}/resume"""
    data = await exchange.read_body()
    asked = bodies.JsonBody(bodies.parse_object(data)).options(SandboxOptions, _RESUMED, persistent=True)
    header = {
        "space": space_id,
        "lifetime": asdict(Lifetime(asked.timeout_seconds, asked.idle_timeout_seconds)),
        "persistent": asked.persistent,
        "network": None if asked.network is None else network_request(asked.network),
        "secrets": secrets_request(asked.secrets),
    }
    await _make(exchange, resuming(exchange, header), data, persistent=asked.persistent)


@api.operation(
    "discard", "forks", "Forget what was kept of a persistent sandbox", {204: api.DONE}, errors=(401, 403, 503)
)
async def _discard(exchange: RequestExchange, space_id: str) -> None:
    """DELETE /v1/spaces/{space_id}"""
    await ask(exchange, calls.DISCARD, exchange.activity.header(exchange, {"space": space_id}))
    await json_answers.answer_nothing(exchange)


# Looking


@api.operation(
    "listSandboxes",
    "sandboxes",
    "Your sandboxes; with an operator's key those of all",
    {
        200: api.answer(
            "All there are.",
            api.record({"sandboxes": api.array(api.ref("SandboxRow"))}),
            {
                "sandboxes": [
                    {
                        "id": api.SANDBOX_ID,
                        "state": "idle",
                        "template": "default",
                        "created_ms": 1776510028036,
                        "expires_ms": 1776511828036,
                        "idle_expires_ms": 1776510328036,
                        "parent": None,
                        "waiting": 0,
                        "memory_limit_bytes": 536870912,
                        "persistent": False,
                    }
                ]
            },
        )
    },
    errors=(401, 403, 503),
)
async def _list(exchange: RequestExchange) -> None:
    """GET /v1/sandboxes"""
    if exchange.operates:
        rows = await operator.rows(exchange)
    else:
        answer = await ask(exchange, calls.SANDBOXES, exchange.activity.header(exchange, {}))
        rows = [_row(row) for row in fields.array(answer.header, "sandboxes") if isinstance(row, dict)]
    await json_answers.answer_long_json(exchange, {"sandboxes": rows}, rows)


def _row(row: Mapping[str, object]) -> dict[str, object]:
    """A row without the owner and the key, because the owner is the caller."""
    return {name: value for name, value in row.items() if name not in ("owner", "key")}


@api.operation(
    "info",
    "sandboxes",
    "One sandbox: its state, limits, use and walls",
    {200: api.answer("All that is known of it.", api.ref("SandboxInfo"))},
)
async def _info(exchange: RequestExchange, sandbox_id: str) -> None:
    """GET /v1/sandboxes/{sandbox_id}"""
    operator.note(exchange, sandbox_id)
    answer = await ask(exchange, calls.INFO, exchange.activity.seeing_header(exchange, {"sandbox": sandbox_id}))
    told = operator.named(exchange, answer.header) if exchange.operates else _row(answer.header)
    await json_answers.answer_json(exchange, told)


# Lifetime


@api.operation(
    "extend",
    "sandboxes",
    "Let a sandbox live longer",
    {
        200: api.answer(
            "When it will end.",
            api.record({"expires_ms": api.whole(null=True), "idle_expires_ms": api.whole(null=True)}, open=True),
            {"expires_ms": 1776511828036, "idle_expires_ms": 1776510328036},
        )
    },
    help="`timeout_seconds` counts from now; `idle_timeout_seconds` takes the place of the old one.",
    body=api.body(
        options_schema(_EXTENDED, dict.fromkeys(_EXTENDED, "")),
        {"timeout_seconds": 3600},
    ),
)
async def _extend(exchange: RequestExchange, sandbox_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/extend"""
    asked = await exchange.read_options(SandboxOptions, _EXTENDED)
    wanted = {name: getattr(asked, name) for name in _EXTENDED}
    header = exchange.activity.header(exchange, {"sandbox": sandbox_id, **wanted})
    answer = await ask(exchange, calls.EXTEND, header)
    told = {name: fields.optional_whole(answer.header, name) for name in ("expires_ms", "idle_expires_ms")}
    await json_answers.answer_json(exchange, told)


@api.operation(
    "hibernate",
    "sandboxes",
    "Write a sandbox to disk, and give up its memory and processes",
    {200: api.answer("It sleeps.", api.record({"size_bytes": api.whole("On disk.")}), {"size_bytes": 4194304})},
    help="The next call of any kind wakes it, under the same id. While it sleeps it takes nothing of the key's memory.",
)
async def _hibernate(exchange: RequestExchange, sandbox_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/hibernate"""
    answer = await ask(exchange, calls.HIBERNATE, exchange.activity.header(exchange, {"sandbox": sandbox_id}))
    await json_answers.answer_json(exchange, {"size_bytes": fields.natural(answer.header, "size_bytes")})


@api.operation(
    "close",
    "sandboxes",
    "Close a sandbox",
    {204: api.DONE},
    help="Also of one that ended, never was, or is another's: it is not there afterwards.",
    errors=(401, 403, 409, 503),
)
async def _close(exchange: RequestExchange, sandbox_id: str) -> None:
    """DELETE /v1/sandboxes/{sandbox_id}: succeeds even if there is no such sandbox, so that it can be repeated."""
    row = exchange.link.rows.get(sandbox_id)
    # Wait until the state of a persistent sandbox is kept, so that it can be resumed as soon as this is answered.
    header = {"sandbox": sandbox_id, "wait": row is not None and row.persistent}
    operator.note(exchange, sandbox_id)
    await ask(exchange, calls.CLOSE, exchange.activity.seeing_header(exchange, header))
    await json_answers.answer_nothing(exchange)


# The server itself


@api.operation(
    "whoami",
    "server",
    "Who the server takes you for",
    {
        200: api.answer(
            "The owner of what you make, and the key's limits.",
            api.record(
                {
                    "owner": api.text(),
                    "key": api.text("The name of the key.", null=True),
                    "scope": api.choice("sandboxes", "operator", "metrics"),
                    "limits": api.mapping(null=True),
                    "network": api.array(
                        api.text(), 'The most that its sandboxes may reach: rules, "open", or nothing.'
                    ),
                    "expires_ms": api.whole("When the key expires; null: never.", null=True),
                }
            ),
            {
                "owner": "key_0123456789abcdef",
                "key": "ci",
                "scope": "sandboxes",
                "limits": {"sandboxes": 100, "memory_mib": None, "concurrent_cells": 64, "templates": 8},
                "network": ["api.example"],
                "expires_ms": 1784286028036,
            },
        )
    },
    errors=(401, 403),
)
async def _whoami(exchange: RequestExchange) -> None:
    """GET /v1/whoami"""
    key = exchange.key
    await json_answers.answer_json(
        exchange,
        {
            "owner": exchange.owner,
            "key": None if key is None else key.name,
            "scope": "sandboxes" if key is None else key.scope,
            "limits": exchange.limits.header(),
            "network": rule_texts(exchange.network),
            "expires_ms": None if key is None else key.expires_ms,
        },
    )


_SANDBOX = "/v1/sandboxes/{sandbox_id}"
ROUTES: list[Route] = [
    ("POST", "/v1/sandboxes", _create),
    ("GET", "/v1/sandboxes", _list),
    ("GET", _SANDBOX, _info),
    ("DELETE", _SANDBOX, _close),
    ("POST", f"{_SANDBOX}/fork", _fork),
    ("POST", f"{_SANDBOX}/merge_into/{{winner_id}}", _merge),
    ("POST", f"{_SANDBOX}/extend", _extend),
    ("POST", f"{_SANDBOX}/hibernate", _hibernate),
    ("POST", "/v1/spaces/{space_id}/resume", _resume),
    ("DELETE", "/v1/spaces/{space_id}", _discard),
    ("GET", "/v1/whoami", _whoami),
]
