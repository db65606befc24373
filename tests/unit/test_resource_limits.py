"""Limits of a sandbox's processes never exceed what the owner's session was given: the kernel would refuse them."""

from __future__ import annotations

import resource

import pytest

from ramet.freezing.resource_limits import resource_limits
from ramet.isolation.kernel import cgroups
from ramet.protocol.values.specs import Limits


def test_no_limit_is_above_that_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: (50, 50) if kind != resource.RLIMIT_NOFILE else (4096, 4096)
    )
    limits = Limits(memory_bytes=1 << 30, pids=256, cpus=2.0, disk_bytes=1 << 30)
    chosen = {kind: (soft, hard) for kind, soft, hard in resource_limits(limits, cgroups.NONE)}
    assert chosen[resource.RLIMIT_NPROC] == (50, 50)
    assert chosen[resource.RLIMIT_DATA] == (50, 50)
