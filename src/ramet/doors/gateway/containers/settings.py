"""All numbers and choices for containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ramet import Network, Secret
from ramet.doors.gateway.running.outcomes import CallLimits
from ramet.doors.gateway.running.outputs import OutputLimits


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """How a container is made, and how long it is kept."""

    # The sandbox: arguments of ``ramet.AsyncSandbox``.
    template: str = "default"
    python: str | None = None
    memory_mib: int | None = None
    pids: int | None = None
    cpus: float | None = None
    disk_mib: int | None = None
    network: Network | None = None
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)

    calls: CallLimits = CallLimits()
    outputs: OutputLimits = OutputLimits()
    output_characters: int = 100_000  # of each stream, for client and model

    container_idle_seconds: float = 300.0  # after its last use, until it sleeps; `expires_at` reports it
    container_keep_seconds: float = 30 * 24 * 3600.0  # after its last use, until it is forgotten
    owner_containers: int = 1_000
    containers: int = 5_000
    forks_at_once: int = 16
    tend_seconds: float = 5.0  # between rounds of freezing and forgetting
    leave_seconds: float = 20.0  # for putting all containers to sleep when the gateway ends
