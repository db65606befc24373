"""The past of a sandbox in the words of its users."""

from __future__ import annotations

from dataclasses import asdict

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.history.past import AT_ONCE, NOT_YET, WRITTEN_SINCE, Step, TemplateState
from ramet.engine.history.undo import WentBack
from ramet.engine.images.points import DiskState
from ramet.protocol.values.history import CODE_CHARACTERS, History, KeptIn, Point, Undone


def history(sandbox: Sandbox) -> dict[str, object]:
    """The answer to HISTORY."""
    taker = sandbox.points
    taking, note = taker.taking() if taker is not None else ("off", "")
    steps = sandbox.past.steps
    found = History(
        tuple(_point(step, sandbox.past.last) for step in steps),
        taking,
        note,
        sum(step.memory_bytes for step in steps),
        sum(step.state.disk_bytes for step in steps if isinstance(step.state, DiskState)),
    )
    return {**asdict(found), "points": [asdict(point) for point in found.points]}


def undone(back: WentBack) -> dict[str, object]:
    """The answer to UNDO and REWIND."""
    return asdict(
        Undone(_point(back.step, None), back.cell_ids, back.tool_calls, back.connections, back.writable_mounts)
    )


def _point(step: Step, last: Step | None) -> Point:
    kept = step.state is not None
    unkept = NOT_YET if step is last and step.unkept == AT_ONCE else step.unkept
    return Point(
        step.id,
        step.kind,
        step.cell_id,
        step.code.decode("utf-8", "replace")[:CODE_CHARACTERS],
        step.outcome,
        kept,
        step.lost,
        step.changed_bytes,
        step.time_ms,
        unkept if not kept else WRITTEN_SINCE if step.stale else "",
        step.pause_seconds,
        _place(step),
        step.state.disk_bytes if isinstance(step.state, DiskState) else step.memory_bytes,
    )


def _place(step: Step) -> KeptIn:
    if step.state is None:
        return ""
    if isinstance(step.state, TemplateState):
        return "template"
    return "disk" if step.state.on_disk else "memory"
