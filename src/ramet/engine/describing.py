"""What the engine says of a sandbox: a row in a list, and all there is to know."""

from __future__ import annotations

from dataclasses import asdict

from ramet.engine.sandbox import Sandbox


def row(sandbox: Sandbox) -> dict[str, object]:
    """For a list of many: nothing that takes time to find out."""
    spec, clock = sandbox.spec, sandbox.clock
    return {
        "id": sandbox.id,
        "owner": spec.owner,
        "state": sandbox.state,
        "template": spec.template.name,
        "created_ms": clock.created_ms,
        "expires_ms": clock.expires_ms,
        "idle_expires_ms": clock.idle_expires_ms,
        "parent": sandbox.parent,
        "waiting": sandbox.waiting,
        "memory_limit_bytes": spec.limits.memory_bytes,
        "persistent": spec.persistent,
    }


def info(sandbox: Sandbox) -> dict[str, object]:
    """Everything. Reading it costs milliseconds."""
    body = sandbox.body  # of one moment: another one may take its place
    walls = dict(body.walls())
    if sandbox.network is not None:
        walls["network"] = sandbox.network.summary()
    more = {
        "pid": body.pid,
        "python": sandbox.spec.template.python,
        "limits": asdict(sandbox.spec.limits),
        "usage": {**body.usage(), "spilled_bytes": sandbox.spilled_bytes},
        "walls": walls,
    }
    return {**row(sandbox), **more}
