"""Files that a client gives to code: $INPUT_DIR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ramet import AsyncSandbox
from ramet.doors.gateway.files.names import distinct
from ramet.doors.gateway.files.store import FileStore
from ramet.errors import FileNotFolder, FileNotFound

INPUTS = "/tmp/inputs"


class Uploads:
    """The files copied into one container, by id. Each file is copied once."""

    def __init__(self, copied: Mapping[str, str] | None = None) -> None:
        self._paths: dict[str, str] = dict(copied or {})
        self.unsure = False  # whether the sandbox went back to an earlier state, which may lack some

    @property
    def paths(self) -> Mapping[str, str]:
        """The path of each file, by id."""
        return dict(self._paths)

    def missing(self, file_ids: Sequence[str]) -> list[str]:
        """Those that were not copied, each once."""
        return [file_id for file_id in dict.fromkeys(file_ids) if file_id not in self._paths]

    def path(self, file_id: str) -> str:
        return self._paths[file_id]

    async def look(self, sandbox: AsyncSandbox) -> None:
        """Forget files that are not there, if that is unsure."""
        if self.unsure:
            try:
                there = {f"{INPUTS}/{entry.name}" for entry in await sandbox.files.list(INPUTS)}
            except (FileNotFound, FileNotFolder):
                there = set()
            self._paths = {file_id: path for file_id, path in self._paths.items() if path in there}
            self.unsure = False

    async def put(self, sandbox: AsyncSandbox, files: FileStore, owner: str, file_id: str) -> None:
        """Copy a file under its own name, or under a similar one if that is taken."""
        row = files.get(owner, file_id)
        taken = {path.rpartition("/")[2] for path in self._paths.values()}
        path = f"{INPUTS}/{distinct(row.filename, taken)}"
        await sandbox.files.write(path, files.content(owner, file_id))
        self._paths[file_id] = path
