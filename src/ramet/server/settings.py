"""The numbers and choices a server works with, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

_KIB = 1024
_MIB = 1024 * _KIB

# Records, idle connections to the engine, the interpreter's own.
_OTHER_DESCRIPTORS = 200

LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Plain values only, so that one process can hand them to another as JSON."""

    state: str  # the folder with the records and the engine's socket
    host: str = "127.0.0.1"
    port: int = 7070
    require_key: bool = False  # also on loopback
    # The most that any sandbox may reach, in the words of ``bounds``. None: what keys say, and all that is public for
    # callers that need none.
    network: Sequence[str] | None = None
    log_format: LogFormat = "text"
    audit_bytes: int = 256 * _MIB  # of the audit log, with the older files of it; 0: none is written
    # Cells that run when the server is told to stop may go on for so long.
    grace_seconds: float = 30.0

    # A sandbox made over HTTP has an end, also when nobody asked for one.
    timeout_seconds: float = 30 * 60.0
    idle_timeout_seconds: float = 5 * 60.0

    # What clients may do to connections.
    connections: int = 12_000  # when there are more, one that waits for its next request is closed
    requests: int = 6_000  # being answered: each may hold a connection to the engine
    head_seconds: float = 15.0  # from a connection's beginning, or a request's first byte, to the end of its head
    head_bytes: int = 64 * _KIB
    headers: int = 100
    body_seconds: float = 30.0  # without a byte of a body that is not complete
    idle_seconds: float = 75.0  # between requests
    unread_seconds: float = 60.0  # a client that reads nothing while an answer waits for it
    pipelined: int = 32  # requests behind the one that is answered
    linger_seconds: float = 2.0  # an answer was given before its request was complete: time to read it
    body_bytes: int = 1 * _MIB
    # Of code in JSON, which is read in one go while all others wait; in frames it may be as long as a cell can be.
    code_body_bytes: int = 32 * _MIB

    # What one owner may do to the others.
    requests_of_an_owner: int = 4_000
    held_bytes: int = 768 * _MIB  # of requests and answers that are too long to be passed on piece by piece
    held_bytes_of_an_owner: int = 192 * _MIB

    # What all keys, and callers without one, may have together. None: as much as their own limits allow.
    all_sandboxes: int | None = None
    all_memory_mib: int | None = None  # the sum of the sandboxes' limits

    # What callers without a key may have together; a key has limits of its own.
    local_sandboxes: int = 1_000
    local_cells: int = 2_000
    local_templates: int = 32

    # Ports of sandboxes that whoever knows their URL can reach.
    exposed_ports: int = 32  # of a sandbox
    exposed_requests: int = 100  # of a URL at once
    exposed_seconds: float = 300.0  # until a server in a sandbox begins to answer

    # A stream that is silent so long gets something that means nothing: clients give up after 30 seconds.
    heartbeat_seconds: float = 10.0
    idle_engine_connections: int = 64
    engine_seconds: float = 5.0  # to find the engine, before requests are answered without it

    def fitting(self, descriptors: int) -> ServerSettings:
        """The same for a process that may open so many descriptors."""
        requests = min(self.requests, descriptors // 4)
        return replace(
            self,
            requests=requests,
            requests_of_an_owner=min(self.requests_of_an_owner, requests * 2 // 3),
            connections=min(self.connections, descriptors - requests - _OTHER_DESCRIPTORS),
        )

    @property
    def loopback(self) -> bool:
        """Only programs of this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
