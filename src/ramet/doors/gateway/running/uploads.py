"""Files that a client gives to code: $INPUT_DIR."""

from __future__ import annotations

from ramet import AsyncSandbox
from ramet.doors.gateway.files.names import distinct
from ramet.doors.gateway.files.store import FileStore

INPUTS = "/tmp/inputs"


class Uploads:
    """The files copied into one container, by id. Each file is copied once."""

    def __init__(self, copied: dict[str, str] | None = None) -> None:
        self._paths: dict[str, str] = dict(copied or {})

    def copy(self) -> Uploads:
        return Uploads(self._paths)

    def has(self, file_id: str) -> bool:
        return file_id in self._paths

    def path(self, file_id: str) -> str:
        return self._paths[file_id]

    async def put(self, sandbox: AsyncSandbox, files: FileStore, owner: str, file_id: str) -> None:
        """Copy a file under its own name, or under a similar one if that is taken."""
        row = files.get(owner, file_id)
        taken = {path.rpartition("/")[2] for path in self._paths.values()}
        path = f"{INPUTS}/{distinct(row.filename, taken)}"
        await sandbox.files.write(path, files.content(owner, file_id))
        self._paths[file_id] = path
