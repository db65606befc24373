"""Limits that the kernel keeps per process or per user. Without cgroups a sandbox has no others."""

from __future__ import annotations

import resource

from ramet.freezing.calls import ResourceLimit
from ramet.isolation.kernel.cgroups import Delegation
from ramet.protocol.values.specs import Limits

_DESCRIPTORS = (4096, 65_536)  # soft and hard limit of open descriptors in a sandbox
_DESCRIPTORS_AT_LEAST = 1024
_PENDING_SIGNALS = 2048
_MESSAGE_QUEUE_BYTES = 256 * 1024
# Of pods in which templates boot and images are poured.
BOOT_LIMITS = Limits(memory_bytes=1 << 30, pids=256, cpus=2.0, disk_bytes=1 << 30)


# Most descriptors of one process in a sandbox, for an engine whose sandboxes share their uid with other programs. Set
# once, before the engine serves its first call.
descriptors_at_most: int | None = None


def resource_limits(limits: Limits, delegation: Delegation) -> tuple[ResourceLimit, ...]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Half of the engine's. The kernel counts descriptors in flight through sockets for a whole uid, and compares the
    # count with the limit of the process that sends the next one: a sandbox that has sent as many as it may must leave
    # the engine enough to make another sandbox.
    hard = (
        _DESCRIPTORS[1]
        if most == resource.RLIM_INFINITY
        else min(_DESCRIPTORS[1], max(most // 2, _DESCRIPTORS_AT_LEAST))
    )
    if descriptors_at_most is not None:
        hard = min(hard, descriptors_at_most)
    chosen = [
        (resource.RLIMIT_NOFILE, min(_DESCRIPTORS[0], hard), hard),
        _at_most(resource.RLIMIT_NPROC, limits.pids),  # a hard limit of the owner's session cannot be raised
        # Also where the owner's session may do so: real-time threads of a sandbox would starve all other processes.
        (resource.RLIMIT_NICE, 0, 0),
        (resource.RLIMIT_RTPRIO, 0, 0),
        # The kernel also counts these for all sandboxes together: one must not use them up.
        _at_most(resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS),
        _at_most(resource.RLIMIT_MSGQUEUE, _MESSAGE_QUEUE_BYTES),
    ]
    if "memory" not in delegation.folders:
        chosen.append(_at_most(resource.RLIMIT_DATA, limits.memory_bytes))
    return tuple(chosen)


def _at_most(kind: int, wanted: int) -> ResourceLimit:
    _, most = resource.getrlimit(kind)
    value = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    return kind, value, value
