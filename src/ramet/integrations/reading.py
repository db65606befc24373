"""Shows files of a sandbox to a model: lines of text, pictures, and other files by name and size."""

from __future__ import annotations

from ramet import FileInfo
from ramet.integrations.bounding import bounded
from ramet.integrations.faces import Face
from ramet.integrations.results import IMAGE_BYTES, PRINTED_CHARACTERS, ModelImage, Shown

# The most that is read of a file. For longer ones the model writes code that runs in the sandbox.
LOOKED_AT_BYTES = 8 * 1024 * 1024
LISTED_ENTRIES = 500

_BEGINNINGS = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


async def read_file(face: Face, path: str, first_line: int = 1, line_count: int | None = None) -> Shown:
    """Show a text file from a line on, or a picture. Raises FileError."""
    data = await face.read(path, LOOKED_AT_BYTES)
    media_type = image_type(data)
    if media_type is not None and len(data) <= IMAGE_BYTES:
        return Shown(f"{path}: {media_type}, {len(data)} bytes", (ModelImage(media_type, data),))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        # A long file was cut after LOOKED_AT_BYTES, perhaps inside a character, which has at most four bytes.
        if len(data) < LOOKED_AT_BYTES or error.start < LOOKED_AT_BYTES - 4:
            return Shown(f"{path}: not text, {(await face.stat(path)).size_bytes} bytes", failed=True)
        text = data[: error.start].decode("utf-8")
    if "\0" in text:
        return Shown(f"{path}: not text, {(await face.stat(path)).size_bytes} bytes", failed=True)
    return Shown(_lines(path, text, first_line, line_count, whole=len(data) < LOOKED_AT_BYTES))


def _lines(path: str, text: str, first_line: int, line_count: int | None, whole: bool) -> str:
    lines = text.splitlines(keepends=True)
    last = len(lines) if line_count is None else min(len(lines), first_line - 1 + line_count)
    shown = bounded("".join(lines[first_line - 1 : last]), PRINTED_CHARACTERS)
    notes = []
    if first_line > len(lines) > 0:
        notes.append(f"({path} has {len(lines)} lines)")
    elif first_line > 1 or last < len(lines):
        notes.append(f"(lines {first_line} to {last} of {len(lines)})")
    if not whole:
        notes.append(f"({path} continues after {LOOKED_AT_BYTES} bytes: read the rest with code, a part at a time)")
    if not text:
        notes.append(f"({path} is empty)")
    return "\n".join([*([shown.removesuffix("\n")] if shown else []), *notes])


async def list_files(face: Face, path: str = ".") -> Shown:
    return show_files(await face.list(path))


def show_files(entries: list[FileInfo]) -> Shown:
    lines = [_entry_line(entry) for entry in entries[:LISTED_ENTRIES]]
    if len(entries) > LISTED_ENTRIES:
        lines.append(f"... {len(entries) - LISTED_ENTRIES} more")
    return Shown("\n".join(lines) or "(an empty folder)")


def _entry_line(entry: FileInfo) -> str:
    """One line for an entry. Names may contain line ends and control characters, which are escaped."""
    name = entry.name if entry.name.isprintable() else ascii(entry.name)
    if entry.type == "folder":
        return f"{name}/"
    return f"{name}  {entry.size_bytes} bytes" if entry.type == "file" else f"{name}  ({entry.type})"


async def write_file(face: Face, path: str, data: bytes) -> Shown:
    await face.write(path, data)
    return Shown(f"{len(data)} bytes written to {path}")


def image_type(data: bytes) -> str | None:
    """The media type of a picture by its first bytes, whatever its name says."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for beginning, media_type in _BEGINNINGS if data.startswith(beginning)), None)
