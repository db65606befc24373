"""Calls that make sandboxes: asked for as frames or as JSON, they come together here, where room is counted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from ramet.errors import RametError
from ramet.protocol import calls, fields
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode
from ramet.protocol.requests import SandboxRequest
from ramet.server.departures import ends_with_client
from ramet.server.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Making:
    """A call of the engine, and how many sandboxes of how much memory together it makes."""

    kind: int
    header: Mapping[str, object]
    sandboxes: int = 1
    memory_bytes: int = 0
    template: str | None = None  # of the owner's own, which is made on the way


class EngineSaid(Exception):
    """The engine was asked, and could not. Errors of other kinds mean that it was not asked."""

    def __init__(self, error: RametError) -> None:
        super().__init__(error.message)
        self.error = error


def from_frame(exchange: Exchange, frame: Frame) -> Making:
    """What the SDK asks for."""
    header, creation = frame.header, exchange.application.creation
    if frame.kind == calls.CREATE:
        return creating(exchange, SandboxRequest.read(header))
    if frame.kind == calls.THAW:
        return _thawing(creation.thaw_header(header, exchange.owner))
    if frame.kind == calls.RESUME:
        return resuming(exchange, header)
    count, reseed = fields.whole(header, "count"), fields.flag(header, "reseed")
    return forking(exchange, fields.text(header, "sandbox"), count, reseed)


def creating(exchange: Exchange, request: SandboxRequest) -> Making:
    kind, header = exchange.application.creation.create(request, exchange.owner)
    if kind == calls.THAW:
        return _thawing(header)
    memory_bytes = fields.whole(fields.mapping(header, "limits"), "memory_bytes")
    return Making(kind, header, 1, memory_bytes, None if request.preload is None else request.template)


def thawing(exchange: Exchange, request: SandboxRequest, snapshot: str) -> Making:
    return _thawing(exchange.application.creation.thaw(request, snapshot, exchange.owner))


def _thawing(header: Mapping[str, object]) -> Making:
    # Without a limit of its own it has that of the frozen one, which shows when it is there.
    return Making(calls.THAW, header, memory_bytes=fields.optional_whole(header, "memory_bytes") or 0)


def resuming(exchange: Exchange, header: Mapping[str, object]) -> Making:
    return Making(calls.RESUME, exchange.application.creation.resume_header(header, exchange.owner))


def forking(exchange: Exchange, sandbox_id: str, count: int, reseed: bool) -> Making:
    header = exchange.gate.header(exchange, {"sandbox": sandbox_id, "count": count, "reseed": reseed})
    parent = exchange.link.rows.get(sandbox_id)
    each_bytes = parent.memory_limit_bytes if parent is not None and parent.owner == exchange.owner else 0
    return Making(calls.FORK, header, max(count, 0), max(count, 0) * each_bytes)


async def make(exchange: Exchange, making: Making) -> bytes:
    """Ask the engine for them, if there is room; gives its answer, one frame."""
    owner, key, gate = exchange.owner, exchange.key, exchange.gate
    with (
        gate.room(owner, key, making.sandboxes, making.memory_bytes) as room,
        gate.new_template(owner, key, making.template),
    ):
        data = await _ask(exchange, making)
        answer = next(FrameDecoder(FROM_ENGINE).feed(data))
        if answer.kind == calls.ERROR:
            raise EngineSaid(calls.read_error(answer.header))
        ids = _ids(answer)
        room.made(ids)
    if making.kind == calls.FORK:
        exchange.metrics.fork_ended(owner, len(ids), exchange.log.seconds)
    else:
        exchange.log.sandbox = ids[0]
        exchange.metrics.created(owner, exchange.log.seconds)
    return data


async def _ask(exchange: Exchange, making: Making) -> bytes:
    async with exchange.link.call() as engine:
        engine.send_nowait(encode(making.kind, making.header))
        # Who hangs up will never learn the ids; with a key, the same request may come again and ask for them.
        repeatable = b"idempotency-key" in exchange.headers
        with nullcontext() if repeatable else ends_with_client(exchange, engine):
            return b"".join([data async for data, _ in engine.raw()])


def _ids(answer: Frame) -> list[str]:
    if "children" not in answer.header:
        return [fields.text(answer.header, "id")]
    return [fields.text(child, "id") for child in fields.array(answer.header, "children") if isinstance(child, dict)]
