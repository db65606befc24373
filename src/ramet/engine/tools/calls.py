"""What a client can ask for about tools: give them to a sandbox, and answer calls of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ramet.engine.channel import Channel
from ramet.engine.registry import Registry
from ramet.engine.sandbox import Sandbox
from ramet.engine.settings import Settings
from ramet.engine.tools.call import ToolCall
from ramet.engine.tools.service import ToolService
from ramet.errors import ExecutionUnknown, ProtocolError, SandboxClosed
from ramet.protocol import calls, fields, tool_frames
from ramet.protocol.frames import Frame, encode
from ramet.protocol.refusing import wrong_argument
from ramet.protocol.tools import GivenTools, check_tools, read_tools

_BROKEN_OFF = "the answer ended before it was complete"

# The final answers to TOOL_ANSWER.
TAKEN = encode(calls.ANSWER, {"taken": True})
NOT_TAKEN = encode(calls.ANSWER, {"taken": False})

# Told once: whether somebody waited for the answer.
OnOver = Callable[[bool], None]


async def give(frame: Frame, sandbox: Sandbox) -> dict[str, object]:
    tools = read_tools(frame.blob)
    check_tools(tools)
    try:
        given = GivenTools(tools)
    except RecursionError:
        raise wrong_argument("tools", "a schema in tools is nested too deeply for JSON") from None
    await sandbox.give_tools(given)
    return {}


def gone(frame: Frame, registry: Registry) -> None:
    """Nobody answers the tool calls of an execution any more. One that is over, or is not there, is no error."""
    header = frame.header
    with suppress(SandboxClosed, ExecutionUnknown):
        sandbox = registry.find(fields.text(header, "sandbox"), fields.optional_text(header, "owner"))
        cell = sandbox.executions.find(fields.text(header, "execution")).cell
        if cell is not None and cell.answerer is not None:
            cell.answerer.leave()


def answer(frame: Frame, registry: Registry, channel: Channel, on_over: OnOver) -> Answering | None:
    """Pass an answer to the code that waits for it. One in parts is not over yet: what follows goes to the result.

    That nobody waits any more, not even the sandbox, is no error: the client could not have known.
    """
    reply = _Reply(frame)
    service, call = _find(frame, registry)
    if reply.more:
        return Answering(service, call, frame.blob, channel, registry.settings, on_over)
    if service is not None and call is not None:
        reply.give(service, call)
    on_over(call is not None)
    return None


def answer_quietly(frame: Frame, registry: Registry) -> None:
    """The same for one who does not ask whether it was taken."""
    reply = _Reply(frame)
    if reply.more:
        raise ProtocolError("a quiet answer comes in one piece")
    service, call = _find(frame, registry)
    if service is not None and call is not None:
        reply.give(service, call)


class _Reply:
    """What a client says of a call, checked."""

    __slots__ = ("_failure", "_value", "more")

    def __init__(self, frame: Frame) -> None:
        header = frame.header
        self.more = fields.flag(header, "more")
        self._value = frame.blob
        self._failure: tuple[str, str] | None = None
        _check_part(frame.blob)
        outcome = fields.text(header, "outcome")
        if outcome == "error":
            kind = fields.text(header, "kind") if "kind" in header else "error"
            if kind not in tool_frames.FAILURE_KINDS or self.more:
                raise ProtocolError("a tool fails in a known way, which is told in one piece")
            self._failure = kind, fields.text(header, "message")
        elif outcome != "value":
            raise ProtocolError("a tool's answer is a value or an error")

    def give(self, service: ToolService, call: ToolCall) -> None:
        if self._failure is None:
            service.answer(call, self._value)
        else:
            service.fail(call, *self._failure)


def _find(frame: Frame, registry: Registry) -> tuple[ToolService | None, ToolCall | None]:
    header = frame.header
    call_id = fields.text(header, "call")
    try:
        sandbox = registry.find(fields.text(header, "sandbox"), fields.optional_text(header, "owner"))
    except SandboxClosed:
        return None, None
    service = sandbox.tools
    return service, None if service is None else service.find(call_id)


class Answering:
    """A value that comes in parts, no faster than the code that called reads it; it holds up nobody else.

    Without a call, or when nobody waits any more, the rest is taken in and thrown away: the client sends to the end
    before it listens.
    """

    def __init__(
        self,
        service: ToolService | None,
        call: ToolCall | None,
        first: bytes,
        channel: Channel,
        settings: Settings,
        on_over: OnOver,
    ) -> None:
        self._service = service
        self._call = call
        self._channel = channel
        self._settings = settings
        self._on_over = on_over
        self._value_bytes = len(first)
        if service is not None and call is not None:
            service.answer_in_parts(call, first, self)

    def received(self, frame: Frame) -> None:
        call, service = self._call, self._service
        if frame.kind == calls.CHUNK:
            _check_part(frame.blob)
            self._part(frame.blob)
            return
        taken = False
        if call is not None and service is not None:
            self._call = None
            if frame.kind == calls.END:
                service.answered(call)
                taken = True
            else:
                service.break_off(call, _BROKEN_OFF)
        self._on_over(taken)

    def abandon(self) -> None:
        """The client went away."""
        call, self._call = self._call, None
        if call is not None and self._service is not None:
            self._service.break_off(call, _BROKEN_OFF)

    def lost(self) -> None:
        self._call = None
        self._channel.resume()

    def _part(self, data: bytes) -> None:
        call = self._call
        if call is None or self._service is None:
            return
        self._value_bytes += len(data)
        if self._value_bytes > tool_frames.VALUE_BYTES_AT_MOST:
            self._service.break_off(call, f"the value has more than {tool_frames.VALUE_BYTES_AT_MOST} bytes")
            return
        call.link.part(data, more=True)
        reader = call.link.channel
        if reader.unsent_bytes > self._settings.stream_high_bytes:
            self._channel.pause()
            reader.when_sent(self._settings.stream_low_bytes, self._channel.resume)


def _check_part(data: bytes) -> None:
    if len(data) > calls.CHUNK_BYTES:
        raise ProtocolError(f"a part of a tool's answer has {len(data)} bytes, at most {calls.CHUNK_BYTES} allowed")
