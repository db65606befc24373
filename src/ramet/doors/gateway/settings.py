"""The settings of a gateway."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GatewaySettings:
    """How turns are carried out. ``ContainerSettings`` says where their code runs."""

    upstream: str
    upstream_key: str | None = field(default=None, repr=False)
    """None: pass on the client's own credentials."""
    keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys that clients need; empty: every key is accepted. They are the gateway's own and are never sent upstream."""

    iterations: int = 10
    """Samples of the model in one answer; after this many it ends with ``pause_turn``."""
    stall_seconds: float = 300.0
    """An upstream whose stream is silent for this long has stalled. Small machines read a prompt for minutes."""
    answer_seconds: float = 600.0
    """The same for an answer that is not streamed, which comes in one piece at the end."""
    connect_seconds: float = 10.0
    retry_seconds: tuple[float, ...] = (0.5, 2.0)
    """Delays before a failed sample is retried in the middle of a turn, when code has run already."""
    ping_seconds: float = 5.0
    thread_seconds: float = 300.0
    """How long a thread can be continued."""
    continuation_seconds: float = 900.0
    """How long the answer to tool results is kept for a client that repeats its request."""
    body_bytes: int = 32 << 20
    """The largest request, as in the API."""
