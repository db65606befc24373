"""Operations that copy and compare sandboxes: fork, snapshot, restore, merge, take, diff."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ramet.client.operations.steps import (
    Emit,
    Operation,
    ask,
    carry_out,
    check_may_wait,
    final,
    next_frame,
    send_pulled,
)
from ramet.errors import ProtocolError
from ramet.protocol import calls, checks, fields
from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.frames import encode
from ramet.protocol.requests.operations import ForkOptions, TakeOptions
from ramet.protocol.requests.sandboxes import SandboxOptions
from ramet.protocol.values.differences import FileChange
from ramet.protocol.values.forks import Diff, ForkInfo, NameChange, read_file_change, read_name_change
from ramet.protocol.values.specs import SandboxSpec
from ramet.protocol.values.takes import Taken, read_taken


class ForkedChildren(NamedTuple):
    """The children of a fork: the id of each and what it cost, and what all of them cost together."""

    children: list[tuple[str, ForkInfo]]
    info: ForkInfo


def fork(sandbox_id: str, asked: ForkOptions) -> Operation[ForkedChildren]:
    """Make copies of a sandbox, as it is or as it was at a point of its history."""
    asked.check()
    if asked.at is None:
        check_may_wait(sandbox_id)
    return ask(encode(calls.FORK, {"sandbox": sandbox_id, **asked.header()}), _read_children)


def _read_children(header: Mapping[str, object]) -> ForkedChildren:
    children = []
    for child in fields.array(header, "children"):
        if not isinstance(child, dict):
            raise ProtocolError("a child is an object")
        children.append((fields.text(child, "id"), ForkInfo.read(fields.mapping(child, "info"))))
    return ForkedChildren(children, ForkInfo.read(fields.mapping(header, "info")))


def snapshot(sandbox_id: str) -> Operation[str]:
    """Freeze a copy of a sandbox. Returns the id of the snapshot."""
    check_may_wait(sandbox_id)
    return ask(encode(calls.SNAPSHOT, {"sandbox": sandbox_id}), lambda header: fields.text(header, "id"))


def save_snapshot(snapshot_id: str, name: str) -> Operation[None]:
    """Save a snapshot as a template of its engine."""
    return carry_out(encode(calls.SAVE, {"snapshot": snapshot_id, "name": name}))


def save_on_disk(snapshot_id: str, name: str) -> Operation[int]:
    """Write a snapshot to disk. Returns its size in bytes."""
    header = {"snapshot": snapshot_id, "name": name, "disk": True}
    return ask(encode(calls.SAVE, header), lambda answer: fields.natural(answer, "size_bytes"))


def export_snapshot(snapshot_id: str) -> Operation[None]:
    """Emit the bytes of a snapshot as one file."""
    yield encode(calls.EXPORT, {"snapshot": snapshot_id})
    while (frame := (yield from next_frame())).kind == calls.CHUNK:
        yield Emit(frame.blob)
    final(frame)


def import_snapshot(spec: SandboxSpec | SandboxOptions) -> Operation[str]:
    """Send a file that is pulled in pieces, and return the id of the snapshot that it becomes."""
    yield encode(calls.IMPORT, {**spec.header(), "more": True})
    yield from send_pulled()
    return (yield from ask(encode(calls.END, {}), lambda header: fields.text(header, "id")))


def drop_snapshot(snapshot_id: str) -> Operation[None]:
    """Free a snapshot."""
    return carry_out(encode(calls.DROP, {"snapshot": snapshot_id}))


def restore(sandbox_id: str, snapshot_id: str) -> Operation[None]:
    """Bring a sandbox back to the state of a snapshot."""
    check_may_wait(sandbox_id)
    return carry_out(encode(calls.RESTORE, {"sandbox": sandbox_id, "snapshot": snapshot_id}))


def merge(sandbox_id: str, winner_id: str) -> Operation[None]:
    """Replace the state of a sandbox with that of the winner, whose id then no longer exists."""
    if winner_id == sandbox_id:
        raise wrong_argument("winner", "winner must be another sandbox, got the sandbox itself")
    for waited_for in (sandbox_id, winner_id):
        check_may_wait(waited_for)
    return carry_out(encode(calls.MERGE, {"sandbox": sandbox_id, "winner": winner_id}))


def take(sandbox_id: str, source_id: str, asked: TakeOptions) -> Operation[Taken]:
    """Bring names and files of another sandbox into this one."""
    asked.check()
    if source_id == sandbox_id:
        raise wrong_argument("source", "source must be another sandbox, got the sandbox itself")
    for waited_for in (sandbox_id, source_id):
        check_may_wait(waited_for)
    return _take({"sandbox": sandbox_id, "source": source_id, **asked.header()})


def take_from_snapshot(sandbox_id: str, snapshot_id: str, asked: TakeOptions) -> Operation[Taken]:
    """Bring names and files of a snapshot into a sandbox."""
    asked.check()
    check_may_wait(sandbox_id)
    return _take({"sandbox": sandbox_id, "snapshot": snapshot_id, **asked.header()})


def _take(header: Mapping[str, object]) -> Operation[Taken]:
    files: list[FileChange] = []
    yield encode(calls.TAKE, header)
    while (frame := (yield from next_frame())).kind == calls.CHANGES:
        files.extend(read_file_change(change) for change in fields.array(frame.header, "files"))
    return read_taken(final(frame).header, tuple(files))


def diff(sandbox_id: str, other_id: str, paths: Collection[str] | None) -> Operation[Diff]:
    """Compare with another sandbox: how does the other differ from this one?"""
    compared = checks.check_compared_paths(paths)
    for waited_for in (sandbox_id, other_id):
        check_may_wait(waited_for)
    return _diff({"sandbox": sandbox_id, "other": other_id}, compared)


def diff_since(sandbox_id: str, snapshot_id: str, paths: Collection[str] | None) -> Operation[Diff]:
    """Compare with a snapshot: what has changed here since?"""
    compared = checks.check_compared_paths(paths)
    check_may_wait(sandbox_id)
    return _diff({"sandbox": sandbox_id, "snapshot": snapshot_id}, compared)


def _diff(sides: Mapping[str, str], paths: tuple[str, ...] | None) -> Operation[Diff]:
    files: list[FileChange] = []
    names: list[NameChange] = []
    yield encode(calls.DIFF, {**sides, "paths": None if paths is None else list(paths)})
    while (frame := (yield from next_frame())).kind == calls.CHANGES:
        files.extend(read_file_change(change) for change in fields.array(frame.header, "files"))
        names.extend(read_name_change(change) for change in fields.array(frame.header, "names"))
    return Diff(tuple(files), tuple(names), fields.texts(final(frame).header, "uncompared"))
