"""Sandboxes over HTTP: create, list, fork, merge, extend, end; and the route that names the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from ramet.protocol import calls, checks, fields
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder
from ramet.protocol.network_requests import read_network, read_secrets, rule_texts
from ramet.protocol.refusing import kind_of, must, unknown_field, wrong_argument
from ramet.protocol.requests import SandboxRequest
from ramet.protocol.specs import Lifetime, network_header
from ramet.server import answers, bodies, idempotency, operating
from ramet.server.departures import ask
from ramet.server.exchange import JSON, Exchange, Route
from ramet.server.idempotency import StoredAnswer
from ramet.server.making import EngineSaid, Making, creating, forking, make, resuming, thawing

_MIB_PER_GB = 1024
_FIELDS_OF_REQUESTS = (
    "template", "preload", "env", "cwd", "memory_mib", "pids", "cpus", "disk_mib",
    "timeout_seconds", "idle_timeout_seconds", "persistent", "secrets",
)  # fmt: skip
# Refused with a message of their own, because embedded sandboxes have them.
_ONLY_EMBEDDED = frozenset(("python", "mounts"))


# Making


async def _create(exchange: Exchange) -> None:
    """POST /v1/sandboxes"""
    data = await exchange.read_body(2 * exchange.settings.body_bytes)
    asked = bodies.parse_object(data)
    snapshot = asked.pop("snapshot", None)
    request = _sandbox_request(asked)
    if snapshot is None:
        making = creating(exchange, request)
    elif isinstance(snapshot, str):
        making = thawing(exchange, request, snapshot)
    else:
        raise must("snapshot", "be the id of a snapshot, a string", kind_of(snapshot))
    await _make(exchange, making, data, persistent=request.persistent)


def _sandbox_request(asked: dict[str, object]) -> SandboxRequest:
    """Our fields, and the published client's names for them. A field that is null counts as missing."""
    given = {name: value for name, value in asked.items() if value is not None}
    network = read_network("egress", given.pop("egress", None))
    for theirs, ours, factor in (("ram_mib", "memory_mib", 1), ("rootfs_gb", "disk_mib", _MIB_PER_GB)):
        if theirs not in given:
            continue
        if ours in given:
            raise wrong_argument(theirs, f"{theirs} and {ours} mean the same; give only one of them")
        value = given.pop(theirs)
        if type(value) not in (int, float) or value != value or abs(float(value)) > 2**40:  # type: ignore[arg-type]
            raise must(theirs, "be a number", value)
        given[ours] = int(value * factor)  # type: ignore[operator]
    unknown = given.keys() - set(_FIELDS_OF_REQUESTS) - _ONLY_EMBEDDED
    if unknown:
        usable = [name for name in _FIELDS_OF_REQUESTS if name not in ("python", "mounts")]  # refused over HTTP
        raise unknown_field(min(unknown), ("snapshot", "ram_mib", "rootfs_gb", "egress", *usable))
    return replace(SandboxRequest.read(given), network=network)


async def _make(
    exchange: Exchange, making: Making, fingerprint: bytes, persistent: bool = False, children: bool = False
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
        return StoredAnswer(201, "application/json", answers.encode(told))

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


async def _fork(exchange: Exchange, sandbox_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/fork"""
    data = await exchange.read_body()
    body = bodies.Body(bodies.parse_object(data))
    count, reseed = body.optional_whole("n"), body.flag("reseed", False)
    inherit_secrets = body.flag("inherit_secrets", False)
    body.done()
    count = 1 if count is None else count
    checks.check_count(count)
    await _make(exchange, forking(exchange, sandbox_id, count, reseed, inherit_secrets), data, children=True)


async def _merge(exchange: Exchange, sandbox_id: str, winner_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/merge_into/{winner_id}: the winner's state gets the other's id."""
    (await exchange.read_fields()).done()
    if sandbox_id == winner_id:
        raise wrong_argument("winner", "winner must be another sandbox, got the sandbox itself")
    header = exchange.gate.header(exchange, {"sandbox": sandbox_id, "winner": winner_id})
    await ask(exchange, calls.MERGE, header)
    await answers.answer_nothing(exchange)


async def _resume(exchange: Exchange, space_id: str) -> None:
    """POST /v1/spaces/{space_id}/resume"""
    data = await exchange.read_body()
    asked = bodies.parse_object(data)
    network, secrets = read_network("egress", asked.pop("egress", None)), asked.pop("secrets", None)
    body = bodies.Body(asked)
    lifetime = Lifetime(body.optional_number("timeout_seconds"), body.optional_number("idle_timeout_seconds"))
    persistent = body.flag("persistent", True)
    body.done()
    header = {
        "space": space_id,
        "lifetime": asdict(lifetime),
        "persistent": persistent,
        "network": network_header(network),
        "secrets": [secret.header() for secret in read_secrets("secrets", secrets)],
    }
    await _make(exchange, resuming(exchange, header), data, persistent=persistent)


async def _discard(exchange: Exchange, space_id: str) -> None:
    """DELETE /v1/spaces/{space_id}"""
    await ask(exchange, calls.DISCARD, exchange.gate.header(exchange, {"space": space_id}))
    await answers.answer_nothing(exchange)


# Looking


async def _list(exchange: Exchange) -> None:
    """GET /v1/sandboxes"""
    if exchange.operates:
        rows = await operating.rows(exchange)
    else:
        answer = await ask(exchange, calls.SANDBOXES, exchange.gate.header(exchange, {}))
        rows = [_row(row) for row in fields.array(answer.header, "sandboxes") if isinstance(row, dict)]
    await answers.answer_long_json(exchange, {"sandboxes": rows}, rows)


def _row(row: Mapping[str, object]) -> dict[str, object]:
    """A row without the owner and the key, because the owner is the caller."""
    return {name: value for name, value in row.items() if name not in ("owner", "key")}


async def _info(exchange: Exchange, sandbox_id: str) -> None:
    """GET /v1/sandboxes/{sandbox_id}"""
    operating.note(exchange, sandbox_id)
    answer = await ask(exchange, calls.INFO, exchange.gate.seeing_header(exchange, {"sandbox": sandbox_id}))
    told = operating.named(exchange, answer.header) if exchange.operates else _row(answer.header)
    await answers.answer_json(exchange, told)


# Lifetime


async def _extend(exchange: Exchange, sandbox_id: str) -> None:
    """POST /v1/sandboxes/{sandbox_id}/extend"""
    body = await exchange.read_fields()
    wanted = {name: body.optional_number(name) for name in ("timeout_seconds", "idle_timeout_seconds")}
    body.done()
    for name, value in wanted.items():
        checks.check_timeout(value, name)
    header = exchange.gate.header(exchange, {"sandbox": sandbox_id, **wanted})
    answer = await ask(exchange, calls.EXTEND, header)
    told = {name: fields.optional_whole(answer.header, name) for name in ("expires_ms", "idle_expires_ms")}
    await answers.answer_json(exchange, told)


async def _close(exchange: Exchange, sandbox_id: str) -> None:
    """DELETE /v1/sandboxes/{sandbox_id}: succeeds even if there is no such sandbox, so that it can be repeated."""
    row = exchange.link.rows.get(sandbox_id)
    # Wait until the state of a persistent sandbox is kept, so that it can be resumed as soon as this is answered.
    header = {"sandbox": sandbox_id, "wait": row is not None and row.persistent}
    operating.note(exchange, sandbox_id)
    await ask(exchange, calls.CLOSE, exchange.gate.seeing_header(exchange, header))
    await answers.answer_nothing(exchange)


# The server itself


async def _whoami(exchange: Exchange) -> None:
    """GET /v1/whoami"""
    key = exchange.key
    await answers.answer_json(
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
    ("POST", "/v1/spaces/{space_id}/resume", _resume),
    ("DELETE", "/v1/spaces/{space_id}", _discard),
    ("GET", "/v1/whoami", _whoami),
]
