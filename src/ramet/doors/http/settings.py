"""All numbers and choices of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ramet.web.connection_limits import ConnectionLimits

_MIB = 1024 * 1024

LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class ServerSettings(ConnectionLimits):
    """The settings of a server. Plain values only, so that one process can pass them to another as JSON."""

    state: str  # the folder with the records and the engine's socket
    host: str = "127.0.0.1"
    port: int = 7070
    require_key: bool = False  # on loopback too
    # The bound on the network of every sandbox, in the words of ``access.network_bounds``. None: as each key says, and
    # every public address for callers without a key.
    network: Sequence[str] | None = None
    log_format: LogFormat = "text"
    audit_bytes: int = 256 * _MIB  # size of the audit log with its older files; 0: there is none
    # How long running cells may go on after the server is told to stop.
    grace_seconds: float = 30.0

    # A sandbox made over HTTP always has an end, even if the caller asks for none.
    timeout_seconds: float = 30 * 60.0
    idle_timeout_seconds: float = 5 * 60.0
    # What a sandbox that did not say does after its idle timeout: it ends, or sleeps on disk until it is called,
    # for at most this many days after it was made.
    on_idle: Literal["end", "hibernate"] = "end"
    kept_days: float = 30.0

    body_bytes: int = 1 * _MIB
    # Code in JSON is decoded at once, which blocks the event loop. Code in frames may be as long as a cell can be.
    code_body_bytes: int = 32 * _MIB

    # Limits that protect owners from each other.
    requests_of_an_owner: int = 4_000
    held_bytes: int = 768 * _MIB  # memory for requests and answers that cannot be passed on piece by piece
    held_bytes_of_an_owner: int = 192 * _MIB

    # Limits for all keys, and callers without one, together. None: only their own limits apply.
    all_sandboxes: int | None = None
    all_memory_mib: int | None = None  # the sum of the sandboxes' limits

    # Limits for callers without a key, together; each key has limits of its own.
    local_sandboxes: int = 1_000
    local_cells: int = 2_000
    local_templates: int = 32

    # Exposed ports of sandboxes, which everybody who knows their URL can reach.
    exposed_ports: int = 32  # for each sandbox
    exposed_requests: int = 100  # open at once, for each URL
    exposed_seconds: float = 300.0  # until a server in a sandbox begins to answer

    # A stream that is silent for this long gets an empty line or frame, because clients give up after 30 seconds.
    heartbeat_seconds: float = 10.0
    idle_engine_connections: int = 64
    engine_seconds: float = 5.0  # to reach the engine at the start, before requests are answered without it

    def fitting(self, descriptors: int) -> ServerSettings:
        """The settings, lowered for a process that may open this many descriptors."""
        fitted = ConnectionLimits.fitting(self, descriptors)  # not super(), which slots=True breaks before Python 3.14
        return replace(fitted, requests_of_an_owner=min(self.requests_of_an_owner, fitted.requests * 2 // 3))

    @property
    def loopback(self) -> bool:
        """Whether only programs on this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
