"""The body of a sandbox that has none: it sleeps on disk."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ramet.engine.seams import DeathNews, Prepared, Session
from ramet.errors import SandboxLost


class AbsentBody:
    """Uses nothing and can do nothing. Every call wakes its sandbox before it comes to need a body."""

    def __init__(self, sandbox_id: str, owner: str) -> None:
        self.prepared: Prepared | None = None
        self.owner = owner
        self.pid = 0
        self.stdout = self.stderr = self.root = -1
        self._sandbox_id = sandbox_id

    def _missing(self) -> NoReturn:
        raise SandboxLost(f"sandbox {self._sandbox_id} is hibernated")

    @property
    def control(self) -> socket.socket:
        self._missing()

    @property
    def death(self) -> DeathNews:
        return asyncio.get_running_loop().create_future()

    async def refresh(self) -> None: ...
    def signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    async def revive(self) -> None:
        self._missing()

    async def close(self) -> None: ...
    async def open_terminal(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        folder: str | None,
        columns: int,
        rows: int,
        commands: str | None = None,
    ) -> Session:
        self._missing()

    async def listen(self, name: str, backlog: int) -> socket.socket | None:
        self._missing()

    async def listen_tcp(self, port: int, backlog: int) -> socket.socket | None:
        self._missing()

    async def bind_udp(self, port: int) -> socket.socket | None:
        self._missing()

    async def plain_socket(self) -> socket.socket:
        self._missing()

    async def netlink(self, family: int) -> socket.socket:
        self._missing()

    def usage(self) -> Mapping[str, int]:
        return {}

    def walls(self) -> Mapping[str, object]:
        return {}

    def processor_seconds(self) -> float:
        return 0.0

    ancestors = 0

    def unique_bytes(self) -> int:
        return 0
