"""Each operation of a sandbox, as a generator that says what to send and is given what came: no I/O happens here.

A driver (``blocking`` or ``asynchronous``) performs the steps that an operation yields:

    bytes      send them
    RECEIVE    give me the next frame
    PULL       give me the next piece of the data that is uploaded, None after the last; its error is thrown in
    Emit(x)    hand x to whoever iterates over this operation
    ToolCalled, ToolCancelled    for whoever answers the calls of tools

and the value it returns is the operation's result. Arguments are checked before, in ``checked``.
"""

from __future__ import annotations

import codecs
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar

from ramet.errors import FileNotFolder, FileNotFound, LimitReached, ProtocolError
from ramet.protocol import calls, fields
from ramet.protocol.bounding import HeadAndTail
from ramet.protocol.differences import FileChange
from ramet.protocol.forks import Diff, ForkInfo, NameChange, read_file_change, read_name_change
from ramet.protocol.frames import Frame, encode, encode_text
from ramet.protocol.listing import SandboxRow
from ramet.protocol.replays import ReplayEvent
from ramet.protocol.requests import SandboxRequest
from ramet.protocol.results import (
    ClearEvent,
    ExitEvent,
    FileInfo,
    OutputEvent,
    OutputStream,
    Result,
    ResultEvent,
    RichResult,
    SandboxInfo,
    Truncated,
)
from ramet.protocol.specs import SandboxSpec, ThawSpec
from ramet.protocol.values import VALUE_BYTES_AT_MOST

if TYPE_CHECKING:
    from ramet.protocol.tool_frames import FailureKind
    from ramet.protocol.tool_values import EncodedValue

Returned = TypeVar("Returned")

# A file may be far larger than it looks (sparse, or growing): reading it as bytes has a bound, a stream has none.
READ_BYTES_AT_MOST = 2 * 1024 * 1024 * 1024
# Of the output of a cell whose result is fetched, for each stream, and of what it displayed: as a result keeps.
RESULT_BYTES_AT_MOST = 10 * 1024 * 1024
SHOWN_BYTES_AT_MOST = 64 * 1024 * 1024


class Need(Enum):
    """What an operation waits for."""

    RECEIVE = 1
    PULL = 2


RECEIVE = Need.RECEIVE
PULL = Need.PULL


@dataclass(frozen=True, slots=True)
class Emit:
    """A piece of a stream, for the caller."""

    item: object


class ToolCalled(NamedTuple):
    """Code in the sandbox calls a tool, and waits."""

    call_id: str
    tool: str
    accepts: tuple[str, ...]
    arguments: bytes  # JSON, as the code wrote it


class ToolCancelled(NamedTuple):
    """It does not wait any more."""

    call_id: str


class ToolFailure(NamedTuple):
    """How a call failed, as the code that made it is told."""

    kind: FailureKind
    message: str


ToolAnswer: TypeAlias = "EncodedValue | ToolFailure"


class Forked(NamedTuple):
    """The children of a fork: the id of each and what it cost, and what all of them cost."""

    children: list[tuple[str, ForkInfo]]
    info: ForkInfo


OnDisconnect = Literal["keep", "interrupt"]


class Record(NamedTuple):
    """The id under which a result is kept, and what happens to the cell if the connection to its caller breaks."""

    execution: str
    on_disconnect: OnDisconnect
    after: str | None = None  # the cell that the same handle has sent before this one, if that is still under way


Step = bytes | Need | Emit | ToolCalled | ToolCancelled
Operation = Generator[Step, Frame | bytes | None, Returned]


def create(spec: SandboxSpec | ThawSpec | SandboxRequest) -> Operation[str]:
    """A new sandbox; gives its id."""
    if isinstance(spec, ThawSpec):
        return (yield from thaw(spec))
    frame = yield from ask(encode(calls.CREATE, spec.header()))
    return fields.text(frame.header, "id")


def thaw(spec: ThawSpec) -> Operation[str]:
    """A new sandbox from a snapshot; gives its id."""
    frame = yield from ask(encode(calls.THAW, spec.header()))
    return fields.text(frame.header, "id")


def fork(sandbox_id: str, count: int, reseed: bool, inherit_secrets: bool = False) -> Operation[Forked]:
    header = {"sandbox": sandbox_id, "count": count, "reseed": reseed, "inherit_secrets": inherit_secrets}
    frame = yield from ask(encode(calls.FORK, header))
    children = []
    for child in fields.array(frame.header, "children"):
        if not isinstance(child, dict):
            raise ProtocolError("a child is an object")
        children.append((fields.text(child, "id"), ForkInfo.read(fields.mapping(child, "info"))))
    return Forked(children, ForkInfo.read(fields.mapping(frame.header, "info")))


def snapshot(sandbox_id: str) -> Operation[str]:
    """Gives the snapshot's id."""
    frame = yield from ask(encode(calls.SNAPSHOT, {"sandbox": sandbox_id}))
    return fields.text(frame.header, "id")


def restore(sandbox_id: str, snapshot_id: str) -> Operation[None]:
    yield from ask(encode(calls.RESTORE, {"sandbox": sandbox_id, "snapshot": snapshot_id}))


def merge(sandbox_id: str, winner_id: str) -> Operation[None]:
    yield from ask(encode(calls.MERGE, {"sandbox": sandbox_id, "winner": winner_id}))


def save_snapshot(snapshot_id: str, name: str) -> Operation[None]:
    yield from ask(encode(calls.SAVE, {"snapshot": snapshot_id, "name": name}))


def drop_snapshot(snapshot_id: str) -> Operation[None]:
    yield from ask(encode(calls.DROP, {"snapshot": snapshot_id}))


def diff(sandbox_id: str, other: Mapping[str, str], paths: tuple[str, ...] | None) -> Operation[Diff]:
    """With another sandbox, ``{"other": id}``, or with what it was itself, ``{"snapshot": id}``."""
    files: list[FileChange] = []
    names: list[NameChange] = []
    header = {"sandbox": sandbox_id, **other, "paths": None if paths is None else list(paths)}
    yield encode(calls.DIFF, header)
    while (frame := (yield from next_frame())).kind == calls.CHANGES:
        files.extend(read_file_change(change) for change in fields.array(frame.header, "files"))
        names.extend(read_name_change(change) for change in fields.array(frame.header, "names"))
    return Diff(tuple(files), tuple(names), fields.texts(final(frame).header, "uncompared"))


def run(
    sandbox_id: str,
    code: bytes,
    language: str,
    timeout_seconds: float | None,
    record: Record | None = None,
    tools: bool = False,
) -> Operation[Result]:
    """With ``tools`` somebody answers the calls of tools that this tells of."""
    yield encode(calls.RUN, _run_header(sandbox_id, language, timeout_seconds, False, record, tools), code)
    while (frame := (yield from next_frame())).kind != calls.RESULT:
        yield _tool_step(frame) if tools else _refuse(frame)
    return calls.read_result(frame)


def stream(
    sandbox_id: str,
    code: bytes,
    language: str,
    timeout_seconds: float | None,
    record: Record | None = None,
    tools: bool = False,
) -> Operation[None]:
    """Emits the events of a cell. ``tools`` as above."""
    # A piece may end in the middle of a character; the decoders keep the beginning until the rest comes.
    decoders = tuple(codecs.getincrementaldecoder("utf-8")("replace") for _ in _STREAMS)
    value: str | None = None
    yield encode(calls.RUN, _run_header(sandbox_id, language, timeout_seconds, True, record, tools), code)
    while True:
        frame = yield from next_frame()
        if frame.kind == calls.OUTPUT:
            index = _stream(frame)
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
        elif frame.kind == calls.RESULT:
            for index, decoder in enumerate(decoders):
                if text := decoder.decode(b"", final=True):
                    yield Emit(OutputEvent(_STREAMS[index], text))
            result = calls.read_result(frame, value)
            yield Emit(ExitEvent(result.exit_code, result))
            return
        else:
            yield _tool_step(frame) if tools else _refuse(frame)


def _run_header(
    sandbox_id: str,
    language: str,
    timeout_seconds: float | None,
    streamed: bool,
    record: Record | None,
    tools: bool,
) -> Mapping[str, object]:
    header: dict[str, object] = {
        "sandbox": sandbox_id,
        "language": language,
        "timeout": timeout_seconds,
        "stream": streamed,
    }
    if record is not None:
        header |= {"execution": record.execution, "on_disconnect": record.on_disconnect}
        if record.after is not None:
            header["after"] = record.after
    if tools:
        header["tools"] = True
    return header


def _tool_step(frame: Frame) -> ToolCalled | ToolCancelled:
    header = frame.header
    if frame.kind == calls.TOOL_CALL:
        call_id, name = fields.text(header, "call"), fields.text(header, "tool")
        return ToolCalled(call_id, name, fields.texts(header, "accepts"), frame.blob)
    if frame.kind == calls.TOOL_CANCELLED:
        return ToolCancelled(fields.text(header, "call"))
    raise _unexpected(frame)


def set_tools(sandbox_id: str, tools: bytes) -> Operation[None]:
    """In force for cells that begin after it."""
    yield from ask(encode(calls.SET_TOOLS, {"sandbox": sandbox_id}, tools))


def quiet_answer(sandbox_id: str, call_id: str, answer: ToolAnswer) -> bytes | None:
    """A short answer as a frame of which nothing comes back; it may go over the connection that runs the cell."""
    header: dict[str, object] = {"sandbox": sandbox_id, "call": call_id, "more": False, "quiet": True}
    if isinstance(answer, ToolFailure):
        return encode(calls.TOOL_ANSWER, {**header, "outcome": "error", **answer._asdict()})
    if answer.size_bytes > calls.CHUNK_BYTES:
        return None
    if not (sandbox_id.isidentifier() and call_id.isidentifier()):
        return encode(calls.TOOL_ANSWER, {**header, "outcome": "value"}, answer.whole())
    # The usual one, by hand: code may make thousands of calls, and these ids need no escapes.
    text = f'{{"sandbox":"{sandbox_id}","call":"{call_id}","outcome":"value","more":false,"quiet":true}}'
    return encode_text(calls.TOOL_ANSWER, text, answer.whole())


def answer_tool(sandbox_id: str, call_id: str, answer: ToolAnswer) -> Operation[bool]:
    """Answer a call, in pieces if that is long. False: nobody waited for it any more."""
    header: dict[str, object] = {"sandbox": sandbox_id, "call": call_id, "outcome": "value", "more": False}
    if isinstance(answer, ToolFailure):
        header |= {"outcome": "error", **answer._asdict()}
        frame = yield from ask(encode(calls.TOOL_ANSWER, header))
    elif answer.size_bytes <= calls.CHUNK_BYTES:
        frame = yield from ask(encode(calls.TOOL_ANSWER, header, answer.whole()))
    else:
        pieces = answer.pieces(calls.CHUNK_BYTES)
        yield encode(calls.TOOL_ANSWER, {**header, "more": True}, next(pieces))
        for piece in pieces:
            yield encode(calls.CHUNK, {}, piece)
        frame = yield from ask(encode(calls.END, {}))
    return fields.flag(frame.header, "taken")


def get_value(sandbox_id: str, name: str) -> Operation[bytes]:
    """A value as it travels."""
    parts: list[bytes] = []
    total_bytes = 0
    yield encode(calls.GET_VALUE, {"sandbox": sandbox_id, "name": name})
    while (frame := (yield from next_frame())).kind == calls.CHUNK:
        parts.append(frame.blob)
        total_bytes += len(frame.blob)
        if total_bytes > VALUE_BYTES_AT_MOST:
            raise ProtocolError(f"a value of more than {VALUE_BYTES_AT_MOST} bytes")
    final(frame)
    return b"".join(parts)


def set_value(sandbox_id: str, name: str, path: str | None, data: bytes) -> Operation[None]:
    """A name gets a value, which is here or in a file of the sandbox."""
    yield from ask(encode(calls.SET_VALUE, {"sandbox": sandbox_id, "name": name, "path": path}, data))


class _Shown:
    """What the recorded frames of a cell leave to be seen, within bounds."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.streams = tuple(HeadAndTail(RESULT_BYTES_AT_MOST) for _ in _STREAMS)
        self.rich: list[RichResult] = []
        self._rich_bytes = self.dropped = 0
        self._clears_next = False

    def take(self, frame: Frame) -> bool:
        """False: it is none of these."""
        if frame.kind not in (calls.OUTPUT, calls.RICH, calls.CLEARED):
            return False
        if frame.kind == calls.CLEARED and fields.flag(frame.header, "wait"):
            self._clears_next = True
            return True
        if self._clears_next or frame.kind == calls.CLEARED:
            self.clear()
        if frame.kind == calls.OUTPUT:
            self.streams[_stream(frame)].add(frame.blob)
        elif frame.kind == calls.RICH:
            self._rich_bytes += len(frame.blob)
            if self._rich_bytes <= SHOWN_BYTES_AT_MOST:
                self.rich.append(calls.read_rich(frame.header, frame.blob))
            else:
                self.dropped += 1
        return True


def fetch(sandbox_id: str, execution_id: str, wait: bool) -> Operation[Result | None]:
    """The result of a cell by its id, with what it printed if that was streamed. None: it has not ended yet."""
    seen = _Shown()
    yield encode(calls.FETCH, {"sandbox": sandbox_id, "execution": execution_id, "wait": wait})
    while True:
        frame = yield from next_frame()
        if frame.kind == calls.ANSWER:
            return None
        if not seen.take(frame):
            break
    streams, shown, shown_dropped = seen.streams, seen.rich, seen.dropped
    value = next((rich.text for rich in reversed(shown) if rich.what == "value"), None)
    result = calls.read_result(final(frame, calls.RESULT), value)
    if not shown and not any(stream.total_bytes for stream in streams):
        return result
    out, err = (stream.kept().decode("utf-8", "replace") for stream in streams)
    cut = result.truncated
    if shown_dropped or any(stream.cut for stream in streams):
        value_bytes = cut.value_bytes if cut is not None else 0
        cut = Truncated(streams[0].total_bytes, streams[1].total_bytes, None, None, shown_dropped, value_bytes)
    return replace(
        result, stdout=out + result.stdout, stderr=err + result.stderr, results=(*shown, *result.results), truncated=cut
    )


def replay(sandbox_id: str) -> Operation[list[ReplayEvent]]:
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
            index = _stream(frame)
            if text := decoders[index].decode(frame.blob):
                events.append(ReplayEvent(_STREAMS[index], text, None, execution, time_seconds))
    final(frame)
    return events


def extend(sandbox_id: str, timeout_seconds: float | None, idle_timeout_seconds: float | None) -> Operation[None]:
    header = {
        "sandbox": sandbox_id,
        "timeout_seconds": timeout_seconds,
        "idle_timeout_seconds": idle_timeout_seconds,
    }
    yield from ask(encode(calls.EXTEND, header))


def interrupt(sandbox_id: str) -> Operation[bool]:
    frame = yield from ask(encode(calls.INTERRUPT, {"sandbox": sandbox_id}))
    return fields.flag(frame.header, "interrupted")


def close(sandbox_id: str) -> Operation[None]:
    yield from ask(encode(calls.CLOSE, {"sandbox": sandbox_id}))


def info(sandbox_id: str) -> Operation[SandboxInfo]:
    frame = yield from ask(encode(calls.INFO, {"sandbox": sandbox_id}))
    return SandboxInfo.read(frame.header)


def sandboxes() -> Operation[list[SandboxRow]]:
    """All that the caller may see, the oldest first."""
    frame = yield from ask(encode(calls.SANDBOXES, {}))
    rows = [SandboxRow.read(row) for row in fields.array(frame.header, "sandboxes") if isinstance(row, dict)]
    return sorted(rows, key=lambda row: row.created_ms)


def facts() -> Operation[dict[str, object]]:
    """What the engine's machine says of itself."""
    frame = yield from ask(encode(calls.FACTS, {}))
    return dict(frame.header)


def read(sandbox_id: str, path: str) -> Operation[bytes]:
    parts: list[bytes] = []
    total = 0
    yield encode(calls.READ, {"sandbox": sandbox_id, "path": path})
    while (frame := (yield from next_frame())).kind == calls.CHUNK:
        parts.append(frame.blob)
        total += len(frame.blob)
        if total > READ_BYTES_AT_MOST:
            raise LimitReached(
                f"cannot read {path!r} at once: it has more than {READ_BYTES_AT_MOST} bytes",
                hint="use files.read_stream",
            )
    final(frame)
    return b"".join(parts)


def read_stream(sandbox_id: str, path: str, chunk_bytes: int) -> Operation[None]:
    """Emits the file in pieces of at most so many bytes."""
    yield encode(calls.READ, {"sandbox": sandbox_id, "path": path})
    while (frame := (yield from next_frame())).kind == calls.CHUNK:
        for start in range(0, len(frame.blob), chunk_bytes):
            yield Emit(frame.blob[start : start + chunk_bytes])
    final(frame)


def write(sandbox_id: str, path: str, data: bytes) -> Operation[None]:
    """A small file: everything in the request."""
    yield from ask(encode(calls.WRITE, {"sandbox": sandbox_id, "path": path, "more": False}, data))


def write_stream(sandbox_id: str, path: str) -> Operation[None]:
    """A file of any size, pulled piece by piece."""
    yield encode(calls.WRITE, {"sandbox": sandbox_id, "path": path, "more": True})
    try:
        while (piece := (yield PULL)) is not None:
            if not isinstance(piece, bytes):
                raise TypeError("the driver gave something that is not bytes")
            for start in range(0, len(piece), calls.CHUNK_BYTES):
                yield encode(calls.CHUNK, {}, piece[start : start + calls.CHUNK_BYTES])
    except Exception:
        # The source broke. The engine must have let go of the file before the caller hears of it and writes it again.
        yield encode(calls.ABORT, {})
        yield from next_frame()
        raise
    yield from ask(encode(calls.END, {}))


def list_folder(sandbox_id: str, path: str) -> Operation[list[FileInfo]]:
    entries: list[FileInfo] = []
    yield encode(calls.LIST, {"sandbox": sandbox_id, "path": path})
    while (frame := (yield from next_frame())).kind == calls.ENTRIES:
        for entry in fields.array(frame.header, "entries"):
            if not isinstance(entry, dict):
                raise ProtocolError("an entry of a folder is an object")
            entries.append(FileInfo.read(entry))
    final(frame)
    return sorted(entries, key=lambda entry: entry.name)


def stat(sandbox_id: str, path: str) -> Operation[FileInfo]:
    frame = yield from ask(encode(calls.STAT, {"sandbox": sandbox_id, "path": path}))
    return FileInfo.read(frame.header)


def exists(sandbox_id: str, path: str) -> Operation[bool]:
    try:
        yield from stat(sandbox_id, path)
    except (FileNotFound, FileNotFolder):
        return False
    return True


def make_folder(sandbox_id: str, path: str, parents: bool) -> Operation[None]:
    yield from ask(encode(calls.MKDIR, {"sandbox": sandbox_id, "path": path, "parents": parents}))


def remove(sandbox_id: str, path: str, recursive: bool) -> Operation[None]:
    yield from ask(encode(calls.REMOVE, {"sandbox": sandbox_id, "path": path, "recursive": recursive}))


def rename(sandbox_id: str, path: str, new_path: str) -> Operation[None]:
    yield from ask(encode(calls.RENAME, {"sandbox": sandbox_id, "path": path, "new_path": new_path}))


_STREAMS: tuple[OutputStream, OutputStream] = ("stdout", "stderr")


def _stream(frame: Frame) -> int:
    index = fields.natural(frame.header, "stream")
    if index >= len(_STREAMS):
        raise ProtocolError(f"output of a stream {index}, which does not exist")
    return index


def ask(request: bytes, expected: int = calls.ANSWER) -> Operation[Frame]:
    yield request
    frame = yield from next_frame()
    return final(frame, expected)


def next_frame() -> Operation[Frame]:
    frame = yield RECEIVE
    if not isinstance(frame, Frame):
        raise TypeError("the driver gave something that is not a frame")
    return frame


def final(frame: Frame, expected: int = calls.ANSWER) -> Frame:
    if frame.kind != expected:
        raise _unexpected(frame)
    return frame


def _refuse(frame: Frame) -> NoReturn:
    raise _unexpected(frame)


def _unexpected(frame: Frame) -> Exception:
    """The error that the engine told, or that its answer is."""
    if frame.kind == calls.ERROR:
        return calls.read_error(frame.header)
    return ProtocolError(f"the engine answered with a frame of kind {frame.kind}")
