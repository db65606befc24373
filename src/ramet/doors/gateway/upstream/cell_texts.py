"""Texts for the model about the cells and files of one turn: from known outcomes, else from the blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ramet.doors.gateway.errors import ApiError
from ramet.doors.gateway.files.index import FileRow
from ramet.doors.gateway.files.store import FileStore
from ramet.doors.gateway.kinds import AnyBlock
from ramet.doors.gateway.upstream.past_cells import retell
from ramet.doors.gateway.upstream.translation import Told


class CellTexts:
    """Owns the texts of this turn."""

    def __init__(self, files: FileStore, owner: str) -> None:
        self._files = files
        self._owner = owner
        self._told: dict[object, Told] = {}
        self._paths: dict[str, str] = {}

    def cell_ended(self, own_id: str, told: Told) -> None:
        self._told[own_id] = told

    def uploaded(self, paths: dict[str, str]) -> None:
        """Paths of files in the container, by their ids."""
        self._paths.update(paths)

    def tell(self, use: AnyBlock, block: AnyBlock) -> Told:
        found = self._told.get(use.get("id"))
        if found is not None:
            return found
        return retell(use, block, self._find_files)

    def _find_files(self, file_ids: Sequence[str]) -> list[FileRow]:
        found = {row.id: row for row in self._files.some(self._owner, file_ids)}
        return [found[file_id] for file_id in file_ids if file_id in found]

    def tell_upload(self, file_id: str) -> str:
        try:
            name = self._files.get(self._owner, file_id).filename
        except ApiError:
            return f"[The user uploaded the file {file_id}, which is no longer available.]"
        quoted = json.dumps(name, ensure_ascii=False)
        where = f" In the container it is {self._paths[file_id]}." if file_id in self._paths else ""
        return f"[The user uploaded the file {quoted}.{where}]"
