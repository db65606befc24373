"""Calls about sandboxes that sleep on disk, and what other calls wait for: sandboxes that they need are awake first."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ramet.engine.calls.call import Answer
from ramet.engine.cells.turns import Caller
from ramet.engine.registry import Registry
from ramet.engine.sleeping.reopen import GivenAnew, Reopened, reopen, revive
from ramet.errors import ProtocolError, SandboxClosed
from ramet.protocol import calls, fields
from ramet.protocol.frames import Frame
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import Lifetime, network_in, secrets_in

# Calls that use the body of a sandbox without a turn in its queue: the queue wakes it for all others that need it.
SANDBOX_ID = re.compile(r"sbx_[0-9a-f]{32}")
_NAMING = ("sandbox", "winner", "other")  # fields of headers
_LISTING = frozenset((calls.SANDBOXES, calls.WATCH, calls.STATS, calls.INFO, calls.CLOSE))
_NOT_REVIVING = frozenset((calls.REOPEN, calls.KEPT, calls.INFO, calls.CLOSE))
_USING = calls.FILE_CALLS | calls.TERMINAL_CALLS | {calls.EXPOSE, calls.DIAL, calls.SET_TOOLS}


def before(frame: Frame, registry: Registry) -> Awaitable[None] | None:
    """What the call of a frame has to wait for before it begins; awaited, it raises RametError. Mostly nothing."""
    header, sleepers = frame.header, registry.sleepers
    if sleepers.server and frame.kind in _LISTING:
        return None if sleepers.found else sleepers.find()
    owner = each if isinstance(each := header.get("owner"), str) else None
    if sleepers.server and (not sleepers.found or sleepers.dormant) and frame.kind not in _NOT_REVIVING:
        named = [each for name in _NAMING if isinstance(each := header.get(name), str)]
        absent = [each for each in named if registry.present(each, owner) is None]
        if absent:
            return _revive_all(registry, absent, owner)
    if frame.kind not in _USING or not isinstance(sandbox_id := header.get("sandbox"), str):
        return None
    sandbox = registry.present(sandbox_id, owner)
    return None if sandbox is None or sandbox.sleep.is_awake else sandbox.sleep.awake()


async def _revive_all(registry: Registry, ids: Sequence[str], owner: str | None) -> None:
    for sandbox_id in ids:
        await revive(registry, sandbox_id, owner)


def begin(frame: Frame, registry: Registry, caller: Caller, send: Callable[[bytes], None]) -> Answer:
    """Begin the call of a frame, to be awaited. Its turn is in the queue when this returns, or this raises."""
    header = frame.header
    if frame.kind == calls.HIBERNATE:
        sandbox = registry.find(fields.text(header, "sandbox"), fields.optional_text(header, "owner"))
        return _size(registry.sleepers.hibernate(sandbox, caller))
    owner = fields.optional_text(header, "owner") or ""
    if frame.kind == calls.REOPEN:
        asked = fields.optional_mapping(header, "lifetime")
        lifetime = None if asked is None else Lifetime.read(asked)
        given = GivenAnew(network_in(header), secrets_in(header), lifetime)
        return _reopened(reopen(registry, _checked(fields.text(header, "sandbox")), owner, given, _allowance(header)))
    if frame.kind == calls.KEPT:
        return _kept(registry, owner)
    raise ProtocolError(f"a call of unknown kind {frame.kind}")


def _checked(sandbox_id: str) -> str:
    if not SANDBOX_ID.fullmatch(sandbox_id):
        raise SandboxClosed(f"there is no sandbox {sandbox_id!r:.80}")
    return sandbox_id


def _allowance(header: Mapping[str, object]) -> Allowance | None:
    return Allowance.read(header) if "allowance" in header else None


async def _reopened(work: Awaitable[Reopened]) -> dict[str, object]:
    found = await work
    missing = [{"cell_id": cell_id, "code": code} for cell_id, code in found.missing]
    return {"sandbox": found.sandbox.id, "missing": missing}


async def _kept(registry: Registry, owner: str) -> dict[str, object]:
    return {"sandboxes": await registry.sleepers.kept(owner)}


async def _size(work: Awaitable[int]) -> dict[str, object]:
    return {"size_bytes": await work}
