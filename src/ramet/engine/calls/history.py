"""Calls about the past of a sandbox: what it was, and the ways back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ramet.engine.calls.call import Answer
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller
from ramet.engine.history import descriptions
from ramet.engine.history.bring_back import drop_ended
from ramet.engine.history.undo import WentBack, rewind, undo
from ramet.engine.registry import Registry
from ramet.errors import ProtocolError
from ramet.protocol import calls, fields
from ramet.protocol.frames import Frame
from ramet.protocol.requests.operations import RewindOptions, UndoOptions


def begin(frame: Frame, registry: Registry, caller: Caller, send: Callable[[bytes], None]) -> Answer:
    """Begin the call of a frame, to be awaited. Its turn is in the queue when this returns, or this raises."""
    header = frame.header
    sandbox = registry.find(fields.text(header, "sandbox"), fields.optional_text(header, "owner"))
    if frame.kind == calls.HISTORY:
        return _history(sandbox)
    if frame.kind == calls.UNDO:
        return _undone(undo(registry, sandbox, UndoOptions.read(header).n, caller))
    if frame.kind == calls.REWIND:
        return _undone(rewind(registry, sandbox, RewindOptions.read(header).point_id, caller))
    raise ProtocolError(f"a call of unknown kind {frame.kind}")


async def _history(sandbox: Sandbox) -> dict[str, object]:
    await drop_ended(sandbox.past)
    return descriptions.history(sandbox)


async def _undone(work: Awaitable[WentBack]) -> dict[str, object]:
    return descriptions.undone(await work)
