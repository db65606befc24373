"""Describes a sandbox: briefly for a list, and in full."""

from __future__ import annotations

from dataclasses import asdict

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.seams import Body


def row(sandbox: Sandbox) -> dict[str, object]:
    """A row for a list of many sandboxes: only what costs no time to find out."""
    spec, clock = sandbox.spec, sandbox.clock
    return {
        "id": sandbox.id,
        "owner": spec.owner,
        "state": sandbox.state,
        "template": spec.template.name,
        "created_ms": clock.created_ms,
        "expires_ms": clock.expires_ms,
        "idle_expires_ms": clock.idle_expires_ms,
        "parent": sandbox.identity.parent,
        "waiting": sandbox.queue.waiting,
        "memory_limit_bytes": spec.limits.memory_bytes,
        "persistent": spec.persistent,
    }


def info(sandbox: Sandbox) -> dict[str, object]:
    """The full description. Takes milliseconds, because it reads files of the kernel; runs in a thread."""
    body = sandbox.body  # read once: a restore or merge may replace it while this runs
    walls = dict(body.walls())
    if sandbox.network is not None:
        walls["network"] = sandbox.network.summary()
    more = {
        "pid": body.pid,
        "python": sandbox.spec.template.python,
        "limits": asdict(sandbox.spec.limits),
        "usage": _usage(sandbox, body),
        "walls": walls,
        "image": sandbox.on_disk.header(),
    }
    return {**row(sandbox), **more}


def _usage(sandbox: Sandbox, body: Body) -> dict[str, int]:
    kept = sandbox.past.kept()
    usage = dict(body.usage())
    if "processes" in usage:
        # Those of the sandbox: its kept states are in the same group, on top of its limit.
        usage["processes"] -= sum(step.in_pod for step in kept)
    usage["spilled_bytes"] = sandbox.spilled_bytes
    usage["ancestors"] = body.ancestors
    usage["points"] = len(kept)
    usage["points_bytes"] = sum(step.memory_bytes for step in kept)
    usage["points_on_disk"] = sum(step.state is not None and step.state.on_disk for step in kept)
    return usage
