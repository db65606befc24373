"""Calls about sandboxes that sleep on disk, and what other calls wait for: sandboxes that they need are awake first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ramet.engine.calls.call import Answer
from ramet.engine.cells.turns import Caller
from ramet.engine.registry import Registry
from ramet.errors import ProtocolError
from ramet.protocol import calls, fields
from ramet.protocol.frames import Frame

# Calls that use the body of a sandbox without a turn in its queue: the queue wakes it for all others that need it.
_USING = calls.FILE_CALLS | calls.TERMINAL_CALLS | {calls.EXPOSE, calls.DIAL, calls.SET_TOOLS}


def before(frame: Frame, registry: Registry) -> Awaitable[None] | None:
    """What the call of a frame has to wait for before it begins; awaited, it raises RametError. Mostly nothing."""
    if frame.kind not in _USING:
        return None
    sandbox_id, owner = frame.header.get("sandbox"), frame.header.get("owner")
    if not isinstance(sandbox_id, str):
        return None
    sandbox = registry.present(sandbox_id, owner if isinstance(owner, str) else None)
    return None if sandbox is None or sandbox.sleep.is_awake else sandbox.sleep.awake()


def begin(frame: Frame, registry: Registry, caller: Caller, send: Callable[[bytes], None]) -> Answer:
    """Begin the call of a frame, to be awaited. Its turn is in the queue when this returns, or this raises."""
    header = frame.header
    if frame.kind == calls.HIBERNATE:
        sandbox = registry.find(fields.text(header, "sandbox"), fields.optional_text(header, "owner"))
        return _size(registry.sleepers.hibernate(sandbox, caller))
    raise ProtocolError(f"a call of unknown kind {frame.kind}")


async def _size(work: Awaitable[int]) -> dict[str, object]:
    return {"size_bytes": await work}
