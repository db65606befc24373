"""Calls of a server in front of the engine: lists, lifetimes, figures, old output, executions, kept state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ramet.engine.calls.call import Answer, ClientCall, Peer
from ramet.engine.calls.forks import empty_answer, sandbox_answer
from ramet.engine.cells.descriptions import row
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller
from ramet.engine.making.thaw import resume
from ramet.engine.registry import Registry
from ramet.engine.subscriptions import Subscription
from ramet.errors import ProtocolError, RametError
from ramet.protocol import calls, checks, fields
from ramet.protocol.frames import Frame, encode
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import Lifetime, ThawSpec, network_in, secrets_in

Send = Callable[[bytes], None]


def begin(frame: Frame, registry: Registry, caller: Caller, send: Send) -> Answer:
    """Begin the call of a frame, to be awaited; ``send`` takes frames that come before the answer."""
    header = frame.header
    owner = fields.optional_text(header, "owner")
    if frame.kind == calls.SANDBOXES:
        return _ready(_listing(registry, owner))
    if frame.kind == calls.STATS:
        return _stats(registry, owner)
    if frame.kind == calls.RESUME:
        return _resume(registry, header, owner, caller)
    if frame.kind == calls.DISCARD:
        return empty_answer(registry.discard_kept(fields.text(header, "space"), owner))
    sandbox = registry.find(fields.text(header, "sandbox"), owner)
    if frame.kind == calls.EXTEND:
        return _ready(_extend(sandbox, header))
    if frame.kind == calls.REPLAY:
        for piece in sandbox.replay.frames():
            send(piece)
        return _ready({})
    if frame.kind == calls.CANCEL:
        return _ready({"cancelled": _cancel(sandbox, fields.text(header, "execution"))})
    raise ProtocolError(f"a call of unknown kind {frame.kind}")


class WatchCall(ClientCall):
    """A subscription to what begins and ends. It lasts until the client disconnects, or does not read."""

    def __init__(self, peer: Peer, frame: Frame) -> None:
        super().__init__(peer, frame)
        self._owner = fields.optional_text(frame.header, "owner")
        self._subscription = Subscription(peer.channel, self._owner, peer.settings.watch_unsent_bytes, peer.close)

    def begin(self) -> None:
        self.peer.registry.subscriptions.add(self._subscription)
        self.peer.channel.send(_everything(self.peer.registry, self._owner))

    def client_left(self) -> None:
        self.peer.registry.subscriptions.remove(self._subscription)


def _everything(registry: Registry, owner: str | None) -> bytes:
    """The first event of a subscription: everything that exists."""
    event = {
        "event": "all",
        "sandboxes": _rows(registry, owner),
        "snapshots": registry.snapshots.rows(owner),
        "spaces": registry.kept.rows(owner),
    }
    return encode(calls.NEWS, event)


def _rows(registry: Registry, owner: str | None) -> list[dict[str, object]]:
    return [*map(row, registry.all_of(owner)), *registry.sleepers.rows(owner)]


def _listing(registry: Registry, owner: str | None) -> dict[str, object]:
    """Everything of an owner. Snapshots and names are bounded in number, as sandboxes are."""
    return {
        "sandboxes": _rows(registry, owner),
        "snapshots": [snapshot["id"] for snapshot in registry.snapshots.rows(owner)],
        "templates": sorted(registry.snapshots.names(owner or "")),
    }


async def _ready(answer: dict[str, object]) -> dict[str, object]:
    return answer


def _extend(sandbox: Sandbox, header: Mapping[str, object]) -> dict[str, object]:
    asked = Lifetime.read(header)
    checks.check_lifetime(asked)
    clock = sandbox.clock
    clock.extend(asked.timeout_seconds, asked.idle_timeout_seconds)
    if sandbox.keeping is not None:
        sandbox.keeping.extended()
    return {"expires_ms": clock.expires_ms, "idle_expires_ms": clock.idle_expires_ms}


def _cancel(sandbox: Sandbox, execution_id: str) -> bool:
    cell = sandbox.executions.find(execution_id).cell
    return cell is not None and sandbox.queue.cancel(cell, "its execution was cancelled")


def _resume(registry: Registry, header: Mapping[str, object], owner: str | None, caller: Caller) -> Answer:
    asked = fields.optional_mapping(header, "lifetime")
    lifetime = None if asked is None else Lifetime.read(asked)
    spec = ThawSpec(None, None, lifetime=lifetime, network=network_in(header), secrets=secrets_in(header))
    persistent = fields.flag(header, "persistent")
    space, allowance = fields.text(header, "space"), Allowance.read(header)
    return sandbox_answer(resume(registry, space, spec, persistent, caller, owner, allowance))


async def _stats(registry: Registry, owner: str | None) -> dict[str, object]:
    sandboxes = registry.all_of(owner)
    # In a thread: with many mappings the kernel takes long to add up a sandbox's memory.
    usages = await asyncio.to_thread(lambda: [_usage(sandbox) for sandbox in sandboxes])
    owners: dict[str, dict[str, Any]] = {}
    for sandbox, usage in zip(sandboxes, usages, strict=True):
        figures = owners.setdefault(
            sandbox.owner,
            {
                "states": {"idle": 0, "running": 0, "lost": 0, "hibernated": 0},
                "memory_unique_bytes": 0,
                "memory_shared_bytes": 0,
                "waiting": 0,
                "connections": {
                    "allowed": registry.workshop.attempts[sandbox.owner, True],
                    "refused": registry.workshop.attempts[sandbox.owner, False],
                },
            },
        )
        if sandbox.state not in figures["states"]:
            continue  # it was closed meanwhile
        figures["states"][sandbox.state] += 1
        figures["memory_unique_bytes"] += usage.get("private_bytes", 0)
        figures["memory_shared_bytes"] += usage.get("shared_bytes", 0)
        figures["waiting"] += sandbox.queue.waiting
    machine = registry.workshop.machine_if_started()
    facts: Mapping[str, object] = {} if machine is None else machine.facts()
    images: Mapping[str, object] = {}
    if machine is not None and owner is None:  # of all owners together: nothing that one of them may see
        with suppress(RametError, OSError):
            images = await machine.image_figures()
    return {
        "pool": {name: facts.get(f"pool_{name}", 0) for name in ("ready", "hits", "misses")},
        "owners": owners,
        "snapshots": len(registry.snapshots) if owner is None else len(registry.snapshots.rows(owner)),
        "spaces": len(registry.kept.rows(owner)),
        "history": registry.history.facts(owner),
        "images": images,
        "checkpoints_failing": sum(sandbox.on_disk.last_error != "" for sandbox in sandboxes),
    }


def _usage(sandbox: Sandbox) -> Mapping[str, int]:
    try:
        return sandbox.body.usage()
    except OSError:
        return {}  # it ends just now
