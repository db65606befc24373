"""Operations about the past of a sandbox: history, undo, rewind."""

from __future__ import annotations

from ramet.client.operations.steps import Operation, ask, check_may_wait
from ramet.protocol import calls
from ramet.protocol.frames import encode
from ramet.protocol.values.history import History, Undone, check_undo_count, point_id


def history(sandbox_id: str) -> Operation[History]:
    """Describe the past of a sandbox."""
    return ask(encode(calls.HISTORY, {"sandbox": sandbox_id}), History.read)


def undo(sandbox_id: str, count: int) -> Operation[Undone]:
    """Bring a sandbox back to its state before the last ``count`` cells."""
    check_undo_count(count)
    check_may_wait(sandbox_id)
    return ask(encode(calls.UNDO, {"sandbox": sandbox_id, "count": count}), Undone.read)


def rewind(sandbox_id: str, point: object) -> Operation[Undone]:
    """Bring a sandbox back to a kept state."""
    found = point_id(point)
    check_may_wait(sandbox_id)
    return ask(encode(calls.REWIND, {"sandbox": sandbox_id, "point": found}), Undone.read)
