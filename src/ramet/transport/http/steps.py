"""What has to be done on a socket, said by code that does no I/O itself and done by a driver.

    bytes      send them all
    Watched    send them all, unless something can be read before; gives how many were sent
    int        receive at most so many bytes; gives them, or b"" at the end
    Dial       connect; gives the socket, which does not block
    Wait       for a future; gives nothing
    Pause      for so many seconds

A driver throws the OSError of a step into the code that wanted it; nothing happening for too long is a TimeoutError.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

Returned = TypeVar("Returned")

CONNECT_SECONDS = 10.0
# A server says that it is alive every ten seconds, so after this long it is not, or the way to it is cut.
SILENCE_SECONDS = 45.0


@dataclass(frozen=True, slots=True)
class Watched:
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


Step = bytes | Watched | int | Dial | Wait | Pause
Steps = Generator[Step, Any, Returned]
