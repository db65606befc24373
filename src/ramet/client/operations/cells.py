"""Operations on cells: run one, stream its events, fetch a result by its id, interrupt, replay output."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import replace
from os import urandom
from typing import Literal, NamedTuple

from ramet.client.operations.steps import (
    Emit,
    Operation,
    Returned,
    ToolCalled,
    ToolCancelled,
    ask,
    check_may_wait,
    final,
    next_frame,
    refuse,
    unexpected,
)
from ramet.client.tools.current_call import check_not_called_by_cell
from ramet.errors import ProtocolError
from ramet.protocol import calls, checks, fields
from ramet.protocol.argument_errors import must
from ramet.protocol.bounded_bytes import HeadAndTail
from ramet.protocol.frames import Frame, encode
from ramet.protocol.values.replays import ReplayEvent
from ramet.protocol.values.results import (
    ClearEvent,
    ExitEvent,
    OutputEvent,
    OutputStream,
    Result,
    ResultEvent,
    RichResult,
    Truncated,
)

# Bounds for a fetched result, the same as for a result that its caller waited for: bytes of each output stream, and
# bytes of all displayed values together.
RESULT_BYTES_AT_MOST = 10 * 1024 * 1024
SHOWN_BYTES_AT_MOST = 64 * 1024 * 1024

OnDisconnect = Literal["keep", "interrupt"]

_STREAMS: tuple[OutputStream, OutputStream] = ("stdout", "stderr")
_EXECUTION = re.compile(r"[A-Za-z0-9_-]{1,100}")


class CellPlace(NamedTuple):
    """The id under which the engine keeps a cell's result, and the id of the cell that was sent before it."""

    execution: str
    after: str | None


class CellOrder:
    """The cells of one handle that are under way, in the order in which they were sent.

    At a server each cell has a connection of its own, so cells may arrive in another order. Each one therefore names
    its predecessor, and the engine runs it after that one.
    """

    def __init__(self) -> None:
        self._under_way: list[str] = []

    def carry_out(self, cell: Callable[[CellPlace], Operation[Returned]]) -> Operation[Returned]:
        """Carry out a cell, which takes its place in the order with its first step: that is when it is sent."""
        execution = f"exe_{urandom(16).hex()}"
        after = self._under_way[-1] if self._under_way else None
        self._under_way.append(execution)
        try:
            return (yield from cell(CellPlace(execution, after)))
        finally:
            self._under_way.remove(execution)


class _Cell(NamedTuple):
    """A cell whose arguments were checked, ready to be sent."""

    sandbox_id: str
    code: bytes
    language: str
    timeout_seconds: float | None
    on_disconnect: OnDisconnect
    tools: bool

    def request(self, place: CellPlace | None, streamed: bool) -> bytes:
        header: dict[str, object] = {
            "sandbox": self.sandbox_id,
            "language": self.language,
            "timeout": self.timeout_seconds,
            "stream": streamed,
        }
        if place is not None:
            header |= {"execution": place.execution, "on_disconnect": self.on_disconnect}
            if place.after is not None:
                header["after"] = place.after
        if self.tools:
            header["tools"] = True
        return encode(calls.RUN, header, self.code)

    def tool_step(self, frame: Frame) -> ToolCalled | ToolCancelled:
        """The event in a frame about a tool call. Raises the error in any other frame."""
        if not self.tools:
            refuse(frame)
        header = frame.header
        if frame.kind == calls.TOOL_CALL:
            call_id, name = fields.text(header, "call"), fields.text(header, "tool")
            return ToolCalled(call_id, name, fields.texts(header, "accepts"), frame.blob)
        if frame.kind == calls.TOOL_CANCELLED:
            return ToolCancelled(fields.text(header, "call"))
        raise unexpected(frame)


def run(
    sandbox_id: str,
    code: str,
    language: str,
    timeout_seconds: float | None,
    on_disconnect: OnDisconnect = "keep",
    order: CellOrder | None = None,
    tools: bool = False,
) -> Operation[Result]:
    """Run a cell and return its Result.

    With an ``order`` the engine keeps the result under an id, and runs the cells of this order as they were sent. With
    ``tools`` the driver's caller answers the tool calls that this operation yields.
    """
    encoded = _check_cell(code, language, timeout_seconds)
    check_may_wait(sandbox_id)
    _check_on_disconnect(on_disconnect)
    cell = _Cell(sandbox_id, encoded, language, timeout_seconds, on_disconnect, tools)
    return _run(cell, None) if order is None else order.carry_out(lambda place: _run(cell, place))


def _run(cell: _Cell, place: CellPlace | None) -> Operation[Result]:
    yield cell.request(place, streamed=False)
    while (frame := (yield from next_frame())).kind != calls.RESULT:
        yield cell.tool_step(frame)
    return calls.read_result(frame)


def stream(
    sandbox_id: str,
    code: str,
    language: str,
    timeout_seconds: float | None,
    on_disconnect: OnDisconnect = "keep",
    order: CellOrder | None = None,
    tools: bool = False,
) -> Operation[None]:
    """Run a cell and emit its events; ``order`` and ``tools`` as for ``run``.

    Whether the caller may wait for the cell is checked when it begins to read the stream, not here.
    """
    encoded = _check_cell(code, language, timeout_seconds)
    check_not_called_by_cell(sandbox_id)
    _check_on_disconnect(on_disconnect)
    cell = _Cell(sandbox_id, encoded, language, timeout_seconds, on_disconnect, tools)
    return _stream(cell, None) if order is None else order.carry_out(lambda place: _stream(cell, place))


def _stream(cell: _Cell, place: CellPlace | None) -> Operation[None]:
    # A piece may end in the middle of a character; the decoders keep the beginning until the rest comes.
    decoders = tuple(codecs.getincrementaldecoder("utf-8")("replace") for _ in _STREAMS)
    value: str | None = None
    yield cell.request(place, streamed=True)
    while (frame := (yield from next_frame())).kind != calls.RESULT:
        if frame.kind == calls.OUTPUT:
            index = _stream_index(frame)
            text = decoders[index].decode(frame.blob)
            if text:
                yield Emit(OutputEvent(_STREAMS[index], text))
        elif frame.kind == calls.RICH:
            event = ResultEvent(calls.read_rich(frame.header, frame.blob))
            if event.result.what == "value":
                value = event.result.text
            yield Emit(event)
        elif frame.kind == calls.CLEARED:
            yield Emit(ClearEvent(fields.flag(frame.header, "wait")))
        else:
            yield cell.tool_step(frame)
    for index, decoder in enumerate(decoders):
        if text := decoder.decode(b"", final=True):
            yield Emit(OutputEvent(_STREAMS[index], text))
    result = calls.read_result(frame, value)
    yield Emit(ExitEvent(result.exit_code, result))


def fetch(sandbox_id: str, execution_id: str, wait: bool) -> Operation[Result | None]:
    """Return the result of a cell by its id, with its output if that was streamed. None if the cell still runs."""
    checks.check_flag(wait, "wait")
    if not isinstance(execution_id, str) or not _EXECUTION.fullmatch(execution_id):
        raise must("execution_id", "be the id of an execution, such as Result.execution_id", execution_id)
    return _fetch(encode(calls.FETCH, {"sandbox": sandbox_id, "execution": execution_id, "wait": wait}))


def _fetch(request: bytes) -> Operation[Result | None]:
    recorded = _RecordedOutput()
    yield request
    while True:
        frame = yield from next_frame()
        if frame.kind == calls.ANSWER:
            return None
        if not recorded.add(frame):
            break
    return recorded.completed(final(frame, calls.RESULT))


class _RecordedOutput:
    """Collects the recorded frames of a cell, within bounds, as far as the cell has not cleared its output."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._streams = tuple(HeadAndTail(RESULT_BYTES_AT_MOST) for _ in _STREAMS)
        self._rich: list[RichResult] = []
        self._rich_bytes = self._rich_dropped = 0
        self._clears_next = False

    def add(self, frame: Frame) -> bool:
        """Add an output frame. Returns False for a frame of any other kind."""
        if frame.kind not in (calls.OUTPUT, calls.RICH, calls.CLEARED):
            return False
        if frame.kind == calls.CLEARED and fields.flag(frame.header, "wait"):
            self._clears_next = True
            return True
        if self._clears_next or frame.kind == calls.CLEARED:
            self._clear()
        if frame.kind == calls.OUTPUT:
            self._streams[_stream_index(frame)].add(frame.blob)
        elif frame.kind == calls.RICH:
            self._rich_bytes += len(frame.blob)
            if self._rich_bytes <= SHOWN_BYTES_AT_MOST:
                self._rich.append(calls.read_rich(frame.header, frame.blob))
            else:
                self._rich_dropped += 1
        return True

    def completed(self, frame: Frame) -> Result:
        """Return the result in the last frame, with the recorded output put in."""
        streams, shown = self._streams, self._rich
        value = next((rich.text for rich in reversed(shown) if rich.what == "value"), None)
        result = calls.read_result(frame, value)
        if not shown and not any(stream.total_bytes for stream in streams):
            return result
        out, err = (stream.kept().decode("utf-8", "replace") for stream in streams)
        cut = result.truncated
        if self._rich_dropped or any(stream.cut for stream in streams):
            value_bytes = cut.value_bytes if cut is not None else 0
            cut = Truncated(streams[0].total_bytes, streams[1].total_bytes, None, None, self._rich_dropped, value_bytes)
        return replace(
            result,
            stdout=out + result.stdout,
            stderr=err + result.stderr,
            results=(*shown, *result.results),
            truncated=cut,
        )


def replay(sandbox_id: str) -> Operation[list[ReplayEvent]]:
    """Return the last output of all cells, as the engine keeps it."""
    decoders = tuple(codecs.getincrementaldecoder("utf-8")("replace") for _ in _STREAMS)
    events: list[ReplayEvent] = []
    yield encode(calls.REPLAY, {"sandbox": sandbox_id})
    while (frame := (yield from next_frame())).kind in (calls.OUTPUT, calls.EXITED):
        execution = fields.text(frame.header, "execution")
        time_seconds = fields.number(frame.header, "ts_ms") / 1000
        if frame.kind == calls.EXITED:
            code = fields.whole(frame.header, "code")
            events.append(ReplayEvent("exit", "", code, execution, time_seconds))
        else:
            index = _stream_index(frame)
            if text := decoders[index].decode(frame.blob):
                events.append(ReplayEvent(_STREAMS[index], text, None, execution, time_seconds))
    final(frame)
    return events


def interrupt(sandbox_id: str) -> Operation[bool]:
    """Interrupt the running cell. Returns False if none runs."""
    return ask(encode(calls.INTERRUPT, {"sandbox": sandbox_id}), lambda header: fields.flag(header, "interrupted"))


def _check_cell(code: str, language: str, timeout_seconds: float | None) -> bytes:
    checks.check_language(language)
    checks.check_timeout(timeout_seconds)
    return checks.check_code(code)


def _check_on_disconnect(on_disconnect: object) -> None:
    if on_disconnect not in ("keep", "interrupt"):
        raise must("on_disconnect", "be 'keep' or 'interrupt'", on_disconnect)


def _stream_index(frame: Frame) -> int:
    index = fields.natural(frame.header, "stream")
    if index >= len(_STREAMS):
        raise ProtocolError(f"output of a stream {index}, which does not exist")
    return index
