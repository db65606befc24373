"""The half of the gateway in which code runs: the containers, and the files that go in and come out."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ramet.doors.gateway.containers.kept_sandbox import place_of
from ramet.doors.gateway.containers.registry import Containers, ContainerSettings
from ramet.doors.gateway.containers.store import ContainerStore
from ramet.doors.gateway.files.store import FileLimits, FileStore


class CodeSide:
    """Owns the containers and the file store of one gateway. Created and closed on its event loop."""

    def __init__(
        self,
        folder: str | Path,
        settings: ContainerSettings | None = None,
        file_limits: FileLimits | None = None,
    ) -> None:
        """``folder`` holds the files that clients uploaded and code made, and the records of the containers.

        Only one gateway at a time may use it. What an earlier one has left is there again.
        """
        settings = ContainerSettings() if settings is None else settings
        self.files = FileStore(folder, file_limits)
        try:
            self._store = ContainerStore(Path(folder) / "containers.sqlite", _place(settings))
            self.containers = Containers(settings, self.files, self._store)
        except BaseException:
            self.files.close()
            raise

    def __repr__(self) -> str:
        return f"<CodeSide {self.containers!r} {self.files!r}>"

    async def close(self) -> None:
        try:
            await self.containers.close()
        finally:
            self._store.close()
            self.files.close()


def _place(settings: ContainerSettings) -> str:
    """A name for the engine that has the sandboxes. A URL may hold a password, which does not belong on disk."""
    url = place_of(settings)
    return hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:16] if url else ""
