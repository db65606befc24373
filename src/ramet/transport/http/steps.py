"""Steps on a socket: code without I/O yields them, and a driver carries them out.

    bytes         send them all
    SocketWait    send them all, unless something can be read first; gives how many were sent
    int           receive at most this many bytes; gives them, or b"" at the end
    Dial          connect; gives the socket, which is non-blocking
    Wait          wait for a future; gives nothing
    Pause         wait this many seconds

A driver throws a step's OSError into the code that yielded it. If nothing happens for too long, it throws TimeoutError.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from ramet.protocol.lazy_dataclasses import dataclass

Returned = TypeVar("Returned")

CONNECT_SECONDS = 10.0
# A server sends a heartbeat every ten seconds, so after this long it is dead or unreachable.
SILENCE_SECONDS = 45.0


@dataclass(frozen=True, slots=True)
class SocketWait:
    data: memoryview


@dataclass(frozen=True, slots=True)
class Dial:
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Wait:
    future: Future[None]


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Step = bytes | SocketWait | int | Dial | Wait | Pause
Steps = Generator[Step, Any, Returned]
