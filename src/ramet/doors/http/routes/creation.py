"""Calls that make sandboxes or snapshots. Requests as frames and as JSON both end up here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

from ramet.doors.http.requests.disconnects import ends_with_client
from ramet.doors.http.requests.exchange import RequestExchange
from ramet.errors import RametError
from ramet.protocol import calls, fields
from ramet.protocol.checks import MIB
from ramet.protocol.frames import FROM_ENGINE, Frame, FrameDecoder, encode
from ramet.protocol.requests.operations import ForkOptions
from ramet.protocol.requests.sandboxes import SandboxOptions


@dataclass(frozen=True, slots=True)
class Making:
    """An engine call that makes sandboxes."""

    kind: int
    header: Mapping[str, object]


class EngineSaid(Exception):
    """Wraps an error that the engine answered. Any other error means that the engine was not called."""

    def __init__(self, error: RametError) -> None:
        super().__init__(error.message)
        self.error = error


def from_frame(exchange: RequestExchange, frame: Frame) -> Making:
    """The call that a frame of the SDK asks for."""
    header, creation = frame.header, exchange.application.creation
    if frame.kind == calls.CREATE:
        return creating(exchange, SandboxOptions.read(header))
    if frame.kind == calls.THAW:
        return Making(calls.THAW, creation.thaw_header(header, exchange.owner))
    if frame.kind == calls.RESUME:
        return resuming(exchange, header)
    if frame.kind == calls.SNAPSHOT:
        header = {"sandbox": fields.text(header, "sandbox")}
        return Making(calls.SNAPSHOT, exchange.activity.header(exchange, header))
    return forking(exchange, fields.text(header, "sandbox"), ForkOptions.read(header))


def creating(exchange: RequestExchange, options: SandboxOptions) -> Making:
    return Making(*exchange.application.creation.create(options, exchange.owner))


def thawing(exchange: RequestExchange, options: SandboxOptions, snapshot: str) -> Making:
    return Making(calls.THAW, exchange.application.creation.thaw(options, snapshot, exchange.owner))


def resuming(exchange: RequestExchange, header: Mapping[str, object]) -> Making:
    return Making(calls.RESUME, exchange.application.creation.resume_header(header, exchange.owner))


def forking(exchange: RequestExchange, sandbox_id: str, asked: ForkOptions) -> Making:
    return Making(calls.FORK, exchange.activity.header(exchange, {"sandbox": sandbox_id, **asked.header()}))


async def make(exchange: RequestExchange, making: Making) -> bytes:
    """Make the call, and return the engine's answer, one frame. Raises EngineSaid if the engine refuses."""
    exchange.activity.check_open()
    data = await _ask(exchange, making)
    answer = next(FrameDecoder(FROM_ENGINE).feed(data))
    if answer.kind == calls.ERROR:
        raise EngineSaid(calls.read_error(answer.header))
    ids = _ids(answer)
    if making.kind == calls.FORK:
        exchange.log.made = ids
        exchange.metrics.fork_ended(exchange.owner, len(ids), exchange.log.seconds)
    elif making.kind != calls.SNAPSHOT:
        exchange.log.sandbox = ids[0]
        exchange.metrics.created(exchange.owner, exchange.log.seconds)
    return data


def allowed(exchange: RequestExchange, header: Mapping[str, object]) -> dict[str, object]:
    """Add the caller's limits to a header. The engine enforces them, because only it knows what exists."""
    settings = exchange.settings
    allowance = replace(
        exchange.limits.allowance(exchange.network),
        all_sandboxes=settings.all_sandboxes,
        all_memory_bytes=None if settings.all_memory_mib is None else settings.all_memory_mib * MIB,
    )
    return {**header, "allowance": allowance.header()}


async def _ask(exchange: RequestExchange, making: Making) -> bytes:
    async with exchange.link.call() as engine:
        engine.send_nowait(encode(making.kind, allowed(exchange, making.header)))
        # A client that disconnects never learns the ids, so the call is cancelled. With an idempotency key the same
        # request may come again and ask for them.
        repeatable = b"idempotency-key" in exchange.headers
        with nullcontext() if repeatable else ends_with_client(exchange, engine):
            return b"".join([data async for data, _ in engine.raw()])


def _ids(answer: Frame) -> list[str]:
    if "children" not in answer.header:
        return [fields.text(answer.header, "id")]
    return [fields.text(child, "id") for child in fields.array(answer.header, "children") if isinstance(child, dict)]
