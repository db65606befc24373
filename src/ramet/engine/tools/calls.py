"""Serves the calls of clients about tools: giving them to a sandbox, and answering calls of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.frame_channel import FrameChannel
from ramet.engine.registry import Registry
from ramet.engine.settings import Settings
from ramet.engine.tools.call import PendingToolAnswer
from ramet.engine.tools.service import ToolService
from ramet.errors import ExecutionUnknown, ProtocolError, SandboxClosed
from ramet.protocol import calls, fields
from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.frames import Frame, encode
from ramet.protocol.tools import socket_frames
from ramet.protocol.tools.specs import GivenTools, check_tools, read_tools

_BROKEN_OFF = "the answer ended before it was complete"

# The final answers to TOOL_ANSWER.
TAKEN = encode(calls.ANSWER, {"taken": True})
NOT_TAKEN = encode(calls.ANSWER, {"taken": False})

# Called once, when an answer is complete, with whether a call was waiting for it.
OnOver = Callable[[bool], None]


async def give(frame: Frame, sandbox: Sandbox) -> dict[str, object]:
    """Replace the tools of a sandbox. Raises InvalidArgument if one of them is malformed."""
    tools = read_tools(frame.blob)
    check_tools(tools)
    try:
        given = GivenTools(tools)
    except RecursionError:
        raise wrong_argument("tools", "a schema in tools is nested too deeply for JSON") from None
    await sandbox.give_tools(given)
    return {}


def gone(frame: Frame, registry: Registry) -> None:
    """The client of an execution has disconnected: fail its tool calls. Ignores an execution that has ended."""
    header = frame.header
    with suppress(SandboxClosed, ExecutionUnknown):
        sandbox = registry.find(fields.text(header, "sandbox"), fields.optional_text(header, "owner"))
        cell = sandbox.executions.find(fields.text(header, "execution")).cell
        if cell is not None and cell.answerer is not None:
            cell.answerer.leave()


def answer(frame: Frame, registry: Registry, channel: FrameChannel, on_over: OnOver) -> ToolAnswerUpload | None:
    """Pass an answer to the code that waits for it. Returns the receiver of the remaining parts, if there are any.

    An answer to a call that has ended meanwhile, or whose sandbox is closed, is dropped: the client could not know.
    Raises ProtocolError if the answer is malformed.
    """
    reply = _Reply(frame)
    service, call = _find(frame, registry)
    if reply.more:
        return ToolAnswerUpload(service, call, frame.blob, channel, registry.settings, on_over)
    if service is not None and call is not None:
        reply.give(service, call)
    on_over(call is not None)
    return None


def answer_quietly(frame: Frame, registry: Registry) -> None:
    """Pass an answer in one part, for a client that does not ask whether it was taken. Raises ProtocolError."""
    reply = _Reply(frame)
    if reply.more:
        raise ProtocolError("a quiet answer comes in one piece")
    service, call = _find(frame, registry)
    if service is not None and call is not None:
        reply.give(service, call)


class _Reply:
    """The answer of a client to a call, checked. Raises ProtocolError."""

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
            if kind not in socket_frames.FAILURE_KINDS or self.more:
                raise ProtocolError("a tool fails in a known way, which is told in one piece")
            self._failure = kind, fields.text(header, "message")
        elif outcome != "value":
            raise ProtocolError("a tool's answer is a value or an error")

    def give(self, service: ToolService, call: PendingToolAnswer) -> None:
        if self._failure is None:
            service.answer(call, self._value)
        else:
            service.fail(call, *self._failure)


def _find(frame: Frame, registry: Registry) -> tuple[ToolService | None, PendingToolAnswer | None]:
    header = frame.header
    call_id = fields.text(header, "call")
    try:
        sandbox = registry.find(fields.text(header, "sandbox"), fields.optional_text(header, "owner"))
    except SandboxClosed:
        return None, None
    service = sandbox.tools
    return service, None if service is None else service.find(call_id)


class ToolAnswerUpload:
    """Receives a value in parts, no faster than the calling code reads it. Other calls are not held up.

    If no call waits, or it ends in the middle, the remaining parts are read and dropped: the client sends all of them
    before it reads our answer, so refusing to read would block it for ever.
    """

    def __init__(
        self,
        service: ToolService | None,
        call: PendingToolAnswer | None,
        first: bytes,
        channel: FrameChannel,
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
        """The client has disconnected in the middle of its answer."""
        call, self._call = self._call, None
        if call is not None and self._service is not None:
            self._service.break_off(call, _BROKEN_OFF)

    def lost(self) -> None:
        self._call = None
        # The channel may be paused until the calling code has read more, which it will not do now.
        self._channel.resume()

    def _part(self, data: bytes) -> None:
        call = self._call
        if call is None or self._service is None:
            return
        self._value_bytes += len(data)
        if self._value_bytes > socket_frames.VALUE_BYTES_AT_MOST:
            self._service.break_off(call, f"the value has more than {socket_frames.VALUE_BYTES_AT_MOST} bytes")
            return
        call.link.part(data, more=True)
        reader = call.link.channel
        # Backpressure: stop reading from the client while the code in the sandbox has not read what it was sent.
        if reader.unsent_bytes > self._settings.stream_high_bytes:
            self._channel.pause()
            reader.when_sent(self._settings.stream_low_bytes, self._channel.resume)


def _check_part(data: bytes) -> None:
    if len(data) > calls.CHUNK_BYTES:
        raise ProtocolError(f"a part of a tool's answer has {len(data)} bytes, at most {calls.CHUNK_BYTES} allowed")
