"""Operations about the past of a sandbox: history, undo, rewind."""

from __future__ import annotations

from ramet.client.operations.steps import Operation, ask, check_may_wait
from ramet.protocol import calls
from ramet.protocol.frames import encode
from ramet.protocol.requests.operations import RewindOptions, UndoOptions
from ramet.protocol.values.history import History, Undone


def history(sandbox_id: str) -> Operation[History]:
    """Describe the past of a sandbox."""
    return ask(encode(calls.HISTORY, {"sandbox": sandbox_id}), History.read)


def undo(sandbox_id: str, asked: UndoOptions) -> Operation[Undone]:
    """Bring a sandbox back to its state before its last cells."""
    asked.check()
    check_may_wait(sandbox_id)
    return ask(encode(calls.UNDO, {"sandbox": sandbox_id, **asked.header()}), Undone.read)


def rewind(sandbox_id: str, asked: RewindOptions) -> Operation[Undone]:
    """Bring a sandbox back to a kept state."""
    asked.check()
    check_may_wait(sandbox_id)
    return ask(encode(calls.REWIND, {"sandbox": sandbox_id, **asked.header()}), Undone.read)
