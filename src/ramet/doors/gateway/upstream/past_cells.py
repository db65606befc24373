"""Texts for the model about cells that ended in an earlier request, of which only the client's blocks are left.

They are the texts that the model got at first (``running.cell_reports``, ``running.text_editor``), as far as the blocks
hold enough to rebuild them: an upstream that has them in its cache finds them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ramet.doors.gateway.files.index import FileRow
from ramet.doors.gateway.kinds import AnyBlock
from ramet.doors.gateway.running.cell_reports import model_text

_FindFiles = Callable[[Sequence[str]], Sequence[FileRow]]


def retell(use: AnyBlock, block: AnyBlock, find_files: _FindFiles) -> str:
    """The text for a call and its result. Blocks come from clients, so anything can be missing."""
    content = block.get("content")
    if not isinstance(content, dict):
        return "(no output)"
    kind = str(content.get("type", ""))
    if kind.endswith("_error"):
        parts = ("error", content.get("error_code"), content.get("error_message"))
        return ": ".join(str(part) for part in parts if part)
    given = use.get("input")
    path = str(given.get("path", "")) if isinstance(given, dict) else ""
    if kind.endswith("_view_result"):
        return _view(content, path)
    if kind.endswith("_create_result"):
        return f"{path} was {'overwritten' if content.get('is_file_update') else 'created'}"
    if kind.endswith("_str_replace_result"):
        lines = content.get("lines")
        return "\n".join([f"{path} was changed:", *map(str, lines if isinstance(lines, list) else ())])
    return _ran(content, find_files)


def _ran(content: AnyBlock, find_files: _FindFiles) -> str:
    return_code = content.get("return_code")
    outputs = content.get("content")
    file_ids = (
        [str(one.get("file_id")) for one in outputs if isinstance(one, dict)] if isinstance(outputs, list) else []
    )
    return model_text(
        str(content.get("stdout") or ""),
        str(content.get("stderr") or ""),
        return_code if isinstance(return_code, int) else 0,
        find_files(file_ids) if file_ids else (),
    )


def _view(content: AnyBlock, path: str) -> str:
    if content.get("file_type") not in (None, "text"):
        return f"{path}: shown before ({content.get('file_type')})"
    first = content.get("start_line")
    lines = str(content.get("content") or "").split("\n")
    if not isinstance(first, int) or lines == [""]:
        return f"{path} is empty"
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, first))
