"""Each operation of a sandbox, as a generator that says what to send and is given what came: no I/O happens here.

A driver (``blocking`` or ``asynchronous``) performs the steps that an operation yields:

    bytes      send them
    RECEIVE    give me the next frame
    PULL       give me the next piece of the data that is uploaded, None after the last; its error is thrown in
    Emit(x)    hand x to whoever iterates over this operation

and the value it returns is the operation's result. Arguments are checked before, in ``checked``.
"""

from __future__ import annotations

import codecs
from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

from ramet.errors import FileNotFolder, FileNotFound, LimitReached, ProtocolError
from ramet.protocol import calls, fields
from ramet.protocol.differences import FileChange
from ramet.protocol.forks import Diff, ForkInfo, NameChange, read_file_change, read_name_change
from ramet.protocol.frames import Frame, encode
from ramet.protocol.results import ExitEvent, FileInfo, OutputEvent, OutputStream, Result, ResultEvent, SandboxInfo
from ramet.protocol.specs import SandboxSpec, ThawSpec

Returned = TypeVar("Returned")

# A file may be far larger than it looks (sparse, or growing): reading it as bytes has a bound, a stream has none.
READ_BYTES_AT_MOST = 2 * 1024 * 1024 * 1024


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


class Forked(NamedTuple):
    """The children of a fork: the id of each and what it cost, and what all of them cost."""

    children: list[tuple[str, ForkInfo]]
    info: ForkInfo


Step = bytes | Need | Emit
Operation = Generator[Step, Frame | bytes | None, Returned]


def create(spec: SandboxSpec | ThawSpec) -> Operation[str]:
    """A new sandbox; gives its id."""
    if isinstance(spec, ThawSpec):
        return (yield from thaw(spec))
    frame = yield from _ask(encode(calls.CREATE, spec.header()))
    return fields.text(frame.header, "id")


def thaw(spec: ThawSpec) -> Operation[str]:
    """A new sandbox from a snapshot; gives its id."""
    frame = yield from _ask(encode(calls.THAW, spec.header()))
    return fields.text(frame.header, "id")


def fork(sandbox_id: str, count: int, reseed: bool) -> Operation[Forked]:
    frame = yield from _ask(encode(calls.FORK, {"sandbox": sandbox_id, "count": count, "reseed": reseed}))
    children = []
    for child in fields.array(frame.header, "children"):
        if not isinstance(child, dict):
            raise ProtocolError("a child is an object")
        children.append((fields.text(child, "id"), ForkInfo.read(fields.mapping(child, "info"))))
    return Forked(children, ForkInfo.read(fields.mapping(frame.header, "info")))


def snapshot(sandbox_id: str) -> Operation[str]:
    """Gives the snapshot's id."""
    frame = yield from _ask(encode(calls.SNAPSHOT, {"sandbox": sandbox_id}))
    return fields.text(frame.header, "id")


def restore(sandbox_id: str, snapshot_id: str) -> Operation[None]:
    yield from _ask(encode(calls.RESTORE, {"sandbox": sandbox_id, "snapshot": snapshot_id}))


def merge(sandbox_id: str, winner_id: str) -> Operation[None]:
    yield from _ask(encode(calls.MERGE, {"sandbox": sandbox_id, "winner": winner_id}))


def save_snapshot(snapshot_id: str, name: str) -> Operation[None]:
    yield from _ask(encode(calls.SAVE, {"snapshot": snapshot_id, "name": name}))


def drop_snapshot(snapshot_id: str) -> Operation[None]:
    yield from _ask(encode(calls.DROP, {"snapshot": snapshot_id}))


def diff(sandbox_id: str, other_id: str, paths: tuple[str, ...] | None) -> Operation[Diff]:
    files: list[FileChange] = []
    names: list[NameChange] = []
    header = {"sandbox": sandbox_id, "other": other_id, "paths": None if paths is None else list(paths)}
    yield encode(calls.DIFF, header)
    while (frame := (yield from _frame())).kind == calls.CHANGES:
        files.extend(read_file_change(change) for change in fields.array(frame.header, "files"))
        names.extend(read_name_change(change) for change in fields.array(frame.header, "names"))
    return Diff(tuple(files), tuple(names), fields.texts(_final(frame).header, "uncompared"))


def run(sandbox_id: str, code: bytes, language: str, timeout_seconds: float | None) -> Operation[Result]:
    header = {"sandbox": sandbox_id, "language": language, "timeout": timeout_seconds, "stream": False}
    frame = yield from _ask(encode(calls.RUN, header, code), calls.RESULT)
    return calls.read_result(frame)


def stream(sandbox_id: str, code: bytes, language: str, timeout_seconds: float | None) -> Operation[None]:
    """Emits the events of a cell."""
    # A piece may end in the middle of a character; the decoders keep the beginning until the rest comes.
    decoders = tuple(codecs.getincrementaldecoder("utf-8")("replace") for _ in _STREAMS)
    value: str | None = None
    header = {"sandbox": sandbox_id, "language": language, "timeout": timeout_seconds, "stream": True}
    yield encode(calls.RUN, header, code)
    while True:
        frame = yield from _frame()
        if frame.kind == calls.OUTPUT:
            index = fields.natural(frame.header, "stream")
            if index >= len(_STREAMS):
                raise ProtocolError(f"output of a stream {index}, which does not exist")
            text = decoders[index].decode(frame.blob)
            if text:
                yield Emit(OutputEvent(_STREAMS[index], text))
        elif frame.kind == calls.RICH:
            event = ResultEvent(calls.read_rich(frame.header, frame.blob))
            if event.result.what == "value":
                value = event.result.text
            yield Emit(event)
        elif frame.kind == calls.RESULT:
            for index, decoder in enumerate(decoders):
                if text := decoder.decode(b"", final=True):
                    yield Emit(OutputEvent(_STREAMS[index], text))
            result = calls.read_result(frame, value)
            yield Emit(ExitEvent(result.exit_code, result))
            return
        else:
            raise _unexpected(frame)


def interrupt(sandbox_id: str) -> Operation[bool]:
    frame = yield from _ask(encode(calls.INTERRUPT, {"sandbox": sandbox_id}))
    return fields.flag(frame.header, "interrupted")


def close(sandbox_id: str) -> Operation[None]:
    yield from _ask(encode(calls.CLOSE, {"sandbox": sandbox_id}))


def info(sandbox_id: str) -> Operation[SandboxInfo]:
    frame = yield from _ask(encode(calls.INFO, {"sandbox": sandbox_id}))
    return SandboxInfo.read(frame.header)


def facts() -> Operation[dict[str, object]]:
    """What the engine's machine says of itself."""
    frame = yield from _ask(encode(calls.FACTS, {}))
    return dict(frame.header)


def read(sandbox_id: str, path: str) -> Operation[bytes]:
    parts: list[bytes] = []
    total = 0
    yield encode(calls.READ, {"sandbox": sandbox_id, "path": path})
    while (frame := (yield from _frame())).kind == calls.CHUNK:
        parts.append(frame.blob)
        total += len(frame.blob)
        if total > READ_BYTES_AT_MOST:
            raise LimitReached(
                f"cannot read {path!r} in one piece: it has more than {READ_BYTES_AT_MOST} bytes",
                hint="use files.read_stream",
            )
    _final(frame)
    return b"".join(parts)


def read_stream(sandbox_id: str, path: str, chunk_bytes: int) -> Operation[None]:
    """Emits the file in pieces of at most so many bytes."""
    yield encode(calls.READ, {"sandbox": sandbox_id, "path": path})
    while (frame := (yield from _frame())).kind == calls.CHUNK:
        for start in range(0, len(frame.blob), chunk_bytes):
            yield Emit(frame.blob[start : start + chunk_bytes])
    _final(frame)


def write(sandbox_id: str, path: str, data: bytes) -> Operation[None]:
    """A small file: everything in the request."""
    yield from _ask(encode(calls.WRITE, {"sandbox": sandbox_id, "path": path, "more": False}, data))


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
        yield from _frame()
        raise
    yield from _ask(encode(calls.END, {}))


def list_folder(sandbox_id: str, path: str) -> Operation[list[FileInfo]]:
    entries: list[FileInfo] = []
    yield encode(calls.LIST, {"sandbox": sandbox_id, "path": path})
    while (frame := (yield from _frame())).kind == calls.ENTRIES:
        for entry in fields.array(frame.header, "entries"):
            if not isinstance(entry, dict):
                raise ProtocolError("an entry of a folder is an object")
            entries.append(FileInfo.read(entry))
    _final(frame)
    return sorted(entries, key=lambda entry: entry.name)


def stat(sandbox_id: str, path: str) -> Operation[FileInfo]:
    frame = yield from _ask(encode(calls.STAT, {"sandbox": sandbox_id, "path": path}))
    return FileInfo.read(frame.header)


def exists(sandbox_id: str, path: str) -> Operation[bool]:
    try:
        yield from stat(sandbox_id, path)
    except (FileNotFound, FileNotFolder):
        return False
    return True


def make_folder(sandbox_id: str, path: str, parents: bool) -> Operation[None]:
    yield from _ask(encode(calls.MKDIR, {"sandbox": sandbox_id, "path": path, "parents": parents}))


def remove(sandbox_id: str, path: str, recursive: bool) -> Operation[None]:
    yield from _ask(encode(calls.REMOVE, {"sandbox": sandbox_id, "path": path, "recursive": recursive}))


def rename(sandbox_id: str, path: str, new_path: str) -> Operation[None]:
    yield from _ask(encode(calls.RENAME, {"sandbox": sandbox_id, "path": path, "new_path": new_path}))


_STREAMS: tuple[OutputStream, OutputStream] = ("stdout", "stderr")


def _ask(request: bytes, expected: int = calls.ANSWER) -> Operation[Frame]:
    yield request
    frame = yield from _frame()
    return _final(frame, expected)


def _frame() -> Operation[Frame]:
    frame = yield RECEIVE
    if not isinstance(frame, Frame):
        raise TypeError("the driver gave something that is not a frame")
    return frame


def _final(frame: Frame, expected: int = calls.ANSWER) -> Frame:
    if frame.kind != expected:
        raise _unexpected(frame)
    return frame


def _unexpected(frame: Frame) -> Exception:
    """The error that the engine told, or that its answer is."""
    if frame.kind == calls.ERROR:
        return calls.read_error(frame.header)
    return ProtocolError(f"the engine answered with a frame of kind {frame.kind}")
