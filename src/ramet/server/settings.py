"""The numbers and choices a server works with, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_KIB = 1024
_MIB = 1024 * _KIB

LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Plain values only, so that one process can hand them to another as JSON."""

    state: str  # the folder with the records and the engine's socket
    host: str = "127.0.0.1"
    port: int = 7070
    require_key: bool = False  # also on loopback
    log_format: LogFormat = "text"
    # Cells that run when the server is told to stop may go on for so long.
    grace_seconds: float = 30.0

    # A sandbox made over HTTP has an end, also when nobody asked for one.
    timeout_seconds: float = 30 * 60.0
    idle_timeout_seconds: float = 5 * 60.0

    # What clients may do to connections.
    connections: int = 12_000
    head_seconds: float = 15.0  # from a connection's beginning, or a request's first byte, to the end of its head
    head_bytes: int = 64 * _KIB
    headers: int = 100
    body_seconds: float = 30.0  # without a byte of a body that is not complete
    idle_seconds: float = 75.0  # between requests
    unread_seconds: float = 60.0  # a client that reads nothing while an answer waits for it
    pipelined: int = 32  # requests behind the one that is answered
    linger_seconds: float = 2.0  # an answer was given before its request was complete: time to read it
    body_bytes: int = 1 * _MIB
    code_body_bytes: int = 96 * _MIB  # of requests that carry code: 64 MiB of it, and what JSON makes of it

    # A stream that is silent so long gets something that means nothing: clients give up after 30 seconds.
    heartbeat_seconds: float = 10.0
    idle_engine_connections: int = 64
    engine_seconds: float = 5.0  # to find the engine, before requests are answered without it

    @property
    def loopback(self) -> bool:
        """Only programs of this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
