"""The half of the gateway in which code runs: the containers, and the files that go in and come out."""

from __future__ import annotations

from pathlib import Path

from ramet.doors.gateway.containers.registry import Containers, ContainerSettings
from ramet.doors.gateway.files.store import FileLimits, FileStore


class CodeSide:
    """Owns the containers and the file store of one gateway. Created and closed on its event loop."""

    def __init__(
        self,
        folder: str | Path,
        settings: ContainerSettings | None = None,
        file_limits: FileLimits | None = None,
    ) -> None:
        """``folder`` holds the files that clients uploaded and code made. Only one gateway at a time may use it."""
        self.files = FileStore(folder, file_limits)
        self.containers = Containers(ContainerSettings() if settings is None else settings, self.files)

    def __repr__(self) -> str:
        return f"<CodeSide {self.containers!r} {self.files!r}>"

    async def close(self) -> None:
        try:
            await self.containers.close()
        finally:
            self.files.close()
