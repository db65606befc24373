"""Calls about forks and snapshots: they make sandboxes from sandboxes, compare them, or replace one by another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ramet.engine.calls.call import Answer
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller
from ramet.engine.history.fork_at import fork_at
from ramet.engine.images.saved import remove, save
from ramet.engine.making.diff import diff, diff_since
from ramet.engine.making.fork import ForkResult, fork
from ramet.engine.making.merge import merge
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.thaw import restore, snapshot, thaw
from ramet.engine.merging.take import take, take_from_snapshot
from ramet.engine.registry import Registry
from ramet.errors import ProtocolError
from ramet.protocol import calls, checks, fields
from ramet.protocol.frames import Frame, encode
from ramet.protocol.requests.operations import ForkOptions, TakeOptions
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.forks import Diff
from ramet.protocol.values.specs import ThawSpec
from ramet.protocol.values.takes import Taken

Send = Callable[[bytes], None]

_CHANGES_IN_A_FRAME = 500


def begin(frame: Frame, registry: Registry, caller: Caller, send: Send) -> Answer:
    """Begin the call of a frame, to be awaited; ``send`` takes frames that come before the answer.

    Everything it names exists and is allowed, and its turn is in the queue, or this raises.
    """
    header = frame.header
    owner = fields.optional_text(header, "owner")
    if frame.kind == calls.THAW:
        return sandbox_answer(thaw(registry, ThawSpec.read(header), caller, owner, Allowance.read(header)))
    if frame.kind == calls.DROP and "name" in header:
        return empty_answer(remove(registry, fields.text(header, "name"), owner or ""))
    if frame.kind == calls.DROP:
        return empty_answer(registry.snapshots.drop(fields.text(header, "snapshot"), owner))
    if frame.kind == calls.SAVE:
        return _save(registry, header, owner, caller)
    sandbox = registry.find(fields.text(header, "sandbox"), owner)
    if frame.kind == calls.FORK:
        copies = ForkOptions.read(header)
        count, reseed, inherit = copies.n, copies.reseed, copies.inherit_secrets
        allowance = Allowance.read(header)
        if (at := copies.point_id) is not None:
            return _fork(fork_at(registry, sandbox, at, count, reseed, caller, allowance, inherit))
        return _fork(fork(registry, sandbox, count, reseed, caller, allowance, inherit))
    if frame.kind == calls.SNAPSHOT:
        return _snapshot(snapshot(registry, sandbox, caller))
    if frame.kind == calls.RESTORE:
        found = registry.snapshots.find(fields.text(header, "snapshot"), owner)
        return empty_answer(restore(registry, sandbox, found, caller))
    if frame.kind == calls.MERGE:
        winner = registry.find(fields.text(header, "winner"), owner)
        return empty_answer(merge(registry, sandbox, winner, caller))
    if frame.kind == calls.TAKE:
        asked = TakeOptions.read(header).spec()
        if header.get("snapshot") is not None:
            found = registry.snapshots.find(fields.text(header, "snapshot"), owner)
            return _take(take_from_snapshot(registry, sandbox, found, asked, caller), send)
        giver = registry.find(fields.text(header, "source"), owner)
        return _take(take(registry, sandbox, giver, asked, caller), send)
    if frame.kind == calls.DIFF:
        paths = None if header.get("paths") is None else checks.check_compared_paths(fields.texts(header, "paths"))
        if header.get("snapshot") is not None:
            found = registry.snapshots.find(fields.text(header, "snapshot"), owner)
            return _diff(diff_since(registry, sandbox, found, paths, caller), send)
        other = registry.find(fields.text(header, "other"), owner)
        return _diff(diff(registry, sandbox, other, paths, caller), send)
    raise ProtocolError(f"a call of unknown kind {frame.kind}")


async def empty_answer(work: Awaitable[None]) -> dict[str, object]:
    await work
    return {}


async def _fork(work: Awaitable[ForkResult]) -> dict[str, object]:
    children = await work
    made = zip(children.sandboxes, children.each, strict=True)
    return {
        "children": [{"id": sandbox.id, "info": asdict(info)} for sandbox, info in made],
        "info": asdict(children.info),
    }


async def _snapshot(work: Awaitable[Snapshot]) -> dict[str, object]:
    return {"id": (await work).id}


async def sandbox_answer(work: Awaitable[Sandbox]) -> dict[str, object]:
    sandbox = await work
    return {"id": sandbox.id, "pid": sandbox.body.pid}


async def _save(
    registry: Registry, header: Mapping[str, object], owner: str | None, caller: Caller
) -> dict[str, object]:
    name = fields.text(header, "name")
    found = registry.snapshots.find(fields.text(header, "snapshot"), owner)
    if header.get("disk") is True:
        # Without a turn: a snapshot has no queue. A caller that leaves does not want the name to mean this one.
        work = caller.queue(needs_repl=False)
        return {"size_bytes": await work.carry_out(lambda: save(registry, found, name, Allowance.read(header)))}
    registry.templates.save(found, name, Allowance.read(header))
    return {}


async def _diff(work: Awaitable[Diff], send: Send) -> dict[str, object]:
    found = await work
    _send_changes(found, send)
    return {"uncompared": list(found.uncompared)}


async def _take(work: Awaitable[Taken], send: Send) -> dict[str, object]:
    taken = await work
    _send_changes(Diff(taken.files), send)
    return {"names": list(taken.names), "size_bytes": taken.size_bytes}


def _send_changes(found: Diff, send: Send) -> None:
    parts: tuple[tuple[str, Sequence[Any]], ...] = (("files", found.files), ("names", found.names))
    for field, changes in parts:
        for start in range(0, len(changes), _CHANGES_IN_A_FRAME):
            some = [asdict(change) for change in changes[start : start + _CHANGES_IN_A_FRAME]]
            send(encode(calls.CHANGES, {"files": [], "names": [], field: some}))
