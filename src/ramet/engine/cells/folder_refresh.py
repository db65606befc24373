"""Folders of the host that a sandbox shows read-only: a refresh makes changes of the host visible there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ramet.engine.seams import Body
from ramet.protocol.values.specs import SandboxSpec

_REFRESH_SECONDS = 1.0


class FolderRefresh:
    """Refreshes the shown folders of one sandbox before each cell and file call, and each second while it is used."""

    def __init__(self, spec: Callable[[], SandboxSpec], body: Callable[[], Body], in_use: Callable[[], bool]) -> None:
        self._spec = spec
        self._body = body
        self._in_use = in_use
        self._task: asyncio.Task[None] | None = None

    @property
    def needed(self) -> bool:
        mounts = self._spec().mounts
        return bool(mounts) and any(not mount.writable for mount in mounts)  # asked for each cell; most have none

    async def now(self) -> None:
        if self.needed:
            await self._body().refresh()

    def go_on(self) -> None:
        """Refresh once a second from now on, until the sandbox is not in use any more."""
        if self._task is None and self.needed:
            self._task = asyncio.get_running_loop().create_task(self._repeat())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _repeat(self) -> None:
        try:
            await asyncio.sleep(_REFRESH_SECONDS)
            while self._in_use():
                await self._body().refresh()
                await asyncio.sleep(_REFRESH_SECONDS)
        finally:
            self._task = None
