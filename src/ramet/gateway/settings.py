"""What a gateway is started with."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GatewaySettings:
    """How turns are carried out. Where their code runs has settings of its own."""

    upstream: str
    upstream_key: str | None = field(default=None, repr=False)
    """None: the client's own credentials are passed on."""
    keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys that let a client in; none: every key does. They are the gateway's own and never go upstream."""

    iterations: int = 10
    """Samples of the model in one answer; after so many it ends with ``pause_turn``."""
    stall_seconds: float = 300.0
    """An upstream that streams and sends nothing for so long has stalled. Small machines read a prompt for minutes."""
    answer_seconds: float = 600.0
    """The same for an answer that is not streamed: it comes in one piece at the end."""
    connect_seconds: float = 10.0
    retry_seconds: tuple[float, ...] = (0.5, 2.0)
    """Waits before a failed sample is tried again in the middle of a turn, when code has run already."""
    ping_seconds: float = 5.0
    thread_seconds: float = 300.0
    """How long a thread can be continued."""
    continuation_seconds: float = 900.0
    """How long the answer to tool results is kept for a client that asks again."""
    body_bytes: int = 32 << 20
    """Size of a request, as the API has it."""
