"""Maps the result of a cell to texts and images for client and model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ramet import Result, RichResult
from ramet.doors.gateway.files.index import FileRow

_IMAGES = (("image/png", "png"), ("image/jpeg", "jpg"), ("image/svg+xml", "svg"), ("image/gif", "gif"))


@dataclass(frozen=True, slots=True)
class CellImage:
    """A figure that a cell has shown."""

    mime_type: str
    extension: str
    data: bytes


def shown_text(result: Result) -> str:
    """The output of a cell, then its values and displayed objects as a notebook shows them in a terminal.

    Output of threads since the cell before comes first, because no other result reports it.
    """
    text = result.background + result.stdout
    for shown in result.results:
        if image(shown) is None and shown.text:
            if text and not text.endswith("\n"):
                text += "\n"
            text += f"{shown.text}\n"
    return text


def images(result: Result) -> list[CellImage]:
    """All figures, in order."""
    found = (image(shown) for shown in result.results)
    return [one for one in found if one is not None]


def image(shown: RichResult) -> CellImage | None:
    for mime_type, extension in _IMAGES:
        data = shown.data.get(mime_type)
        if isinstance(data, str):
            data = data.encode("utf-8", "replace")
        if isinstance(data, bytes):
            return CellImage(mime_type, extension, data)
    return None


def noted(text: str, note: str) -> str:
    """The text with a remark on a line at its end."""
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{note}\n"


def bounded(text: str, characters: int, whole: str | None) -> str:
    """The beginning and the end of a long text, with a line between them that says so."""
    if len(text) <= characters:
        return text
    half = characters // 2
    where = "" if whole is None else f"; all of it is in {whole}"
    note = f"[... {len(text) - 2 * half} of {len(text)} characters left out{where} ...]"
    return f"{text[:half]}\n{note}\n{text[-half:]}"


def model_text(stdout: str, stderr: str, return_code: int, files: Sequence[FileRow]) -> str:
    """The text of a cell for the model. It is never empty, because some upstreams refuse empty texts."""
    parts = [stdout] if stdout else []
    if stderr:
        parts.append(f"stderr:\n{stderr}" if stdout or return_code == 0 else stderr)
    if return_code != 0:
        parts.append(f"return code: {return_code}")
    parts += [f"file: {row.id} {row.filename} ({row.mime_type}, {row.size_bytes} bytes)" for row in files]
    text = "\n".join(part.removesuffix("\n") for part in parts)
    return text if re.search(r"\S", text) else "(no output)"


def time_note(seconds: float) -> str:
    return f"[execution time exceeded: this cell ran for more than {seconds:g} seconds and was interrupted]"
