"""The text editor: view, create and replace in files of a sandbox, from outside, while nothing runs in it.

The client gets the fields of the published blocks, with the text as it is in the file; a model reads the same with
numbered lines.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

from ramet import AsyncFiles
from ramet.doors.gateway.files.names import mime_type_of
from ramet.doors.gateway.running.blocks import EDITOR, Block, ErrorCode, execution_error
from ramet.errors import FileError, FileIsFolder, FileNotFolder, FileNotFound, InvalidArgument

_FILE_BYTES = 16 * 1024 * 1024  # largest file to edit or view; bash can handle larger ones
_PICTURE_BYTES = 5 * 1024 * 1024
_CHARACTERS = 100_000  # of a file that are shown at once
_ENTRIES = 1_000  # of a folder that are shown
_PICTURES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))


@dataclass(frozen=True, slots=True)
class Edited:
    """The content of the result block, and its text for the model."""

    content: Block
    model_text: str | list[dict[str, object]]


class _Refused(Exception):
    """Raised when the editor cannot do this."""

    def __init__(self, message: str, error_code: ErrorCode = "invalid_tool_input") -> None:
        super().__init__(message)
        self.error_code: ErrorCode = error_code


async def edit(files: AsyncFiles, given: Mapping[str, object]) -> Edited:
    """Carry out one command. An error in the command or with the file is an outcome too."""
    try:
        return await _edit(files, given)
    except _Refused as error:
        return _failed(error.error_code, str(error))
    except (FileNotFound, FileNotFolder):
        return _failed("file_not_found", f"there is no file {given.get('path')!r}")
    except InvalidArgument as error:
        return _failed("invalid_tool_input", error.message)
    except FileError as error:
        return _failed("invalid_tool_input", f"{given.get('path')!r}: {error.strerror}")


def _failed(error_code: ErrorCode, message: str) -> Edited:
    return Edited(execution_error(EDITOR, error_code, message), f"error: {error_code}: {message}")


async def _edit(files: AsyncFiles, given: Mapping[str, object]) -> Edited:
    command, path = given.get("command"), _text(given, "path")
    match command:
        case "view":
            return await _view(files, path, given.get("view_range"))
        case "create":
            return await _create(files, path, _text(given, "file_text"))
        case "str_replace":
            new = "" if given.get("new_str") is None else _text(given, "new_str")
            return await _replace(files, path, _text(given, "old_str"), new)
    raise _Refused(f"the command must be 'view', 'create' or 'str_replace', got {command!r:.80}")


# view


async def _view(files: AsyncFiles, path: str, view_range: object) -> Edited:
    try:
        kind = mime_type_of(path, None)
        if kind in _PICTURES or kind == "application/pdf":
            return _pictured(kind, await _read(files, path, _PICTURE_BYTES))
        data = await _read(files, path, _FILE_BYTES)
    except FileIsFolder:
        return await _view_folder(files, path)
    if b"\0" in data:
        raise _Refused(f"{path!r} is not a text file")
    return _viewed(path, data.decode("utf-8", "replace"), view_range)


def _viewed(path: str, text: str, view_range: object) -> Edited:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    first, last = _range(view_range, len(lines))
    shown: list[str] = []
    characters = 0
    for line in lines[first - 1 : last]:
        characters += len(line) + 1
        if shown and characters > _CHARACTERS:
            break
        shown.append(line[:_CHARACTERS])
    numbered = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(shown, first))
    left = last - first + 1 - len(shown)
    if left > 0:
        numbered += f"\n[{left} more lines; use view_range to see them]"
    return Edited(_view_result("text", "\n".join(shown), len(shown), first, len(lines)), numbered or f"{path} is empty")


def _range(view_range: object, count: int) -> tuple[int, int]:
    """The first and the last line to show, counted from 1."""
    if view_range is None:
        return 1, count
    if not isinstance(view_range, list) or len(view_range) != 2:
        raise _Refused("view_range must be two whole numbers, the first and the last line")
    first, last = view_range
    if not isinstance(first, int) or not isinstance(last, int) or isinstance(first, bool) or isinstance(last, bool):
        raise _Refused("view_range must be two whole numbers, the first and the last line")
    if not 1 <= first <= max(count, 1):
        raise _Refused(f"view_range begins at line {first}, but the file has {count} lines")
    if last != -1 and last < first:
        raise _Refused(f"view_range ends at line {last}, before it begins")
    return first, count if last == -1 else min(last, count)


async def _view_folder(files: AsyncFiles, path: str) -> Edited:
    """List two levels, without hidden entries."""
    lines: list[str] = []
    for entry in await files.list(path):
        if entry.name.startswith("."):
            continue
        below = f"{path.rstrip('/')}/{entry.name}"
        lines.append(f"{below}/" if entry.type == "folder" else f"{below}\t{entry.size_bytes} bytes")
        if entry.type == "folder" and len(lines) < _ENTRIES:
            try:
                inner = await files.list(below)
            except FileError:
                continue  # it is gone, or cannot be read
            lines += [
                f"{below}/{one.name}{'/' if one.type == 'folder' else chr(9) + f'{one.size_bytes} bytes'}"
                for one in inner
                if not one.name.startswith(".")
            ]
    total = len(lines)
    shown = lines[:_ENTRIES]
    text = "\n".join(shown)
    told = text or f"{path} is an empty folder"
    if total > len(shown):
        told += f"\n[{total - len(shown)} more]"
    return Edited(_view_result("text", text, len(shown), 1, total), told)


def _pictured(kind: str, data: bytes) -> Edited:
    encoded = base64.b64encode(data).decode("ascii")
    if kind == "application/pdf":
        told: str | list[dict[str, object]] = f"a PDF of {len(data)} bytes: read it with code"
        return Edited(_view_result("pdf", encoded, None, None, None), told)
    told = [{"type": "image", "source": {"type": "base64", "media_type": kind, "data": encoded}}]
    return Edited(_view_result("image", encoded, None, None, None), told)


def _view_result(file_type: str, content: str, shown: int | None, first: int | None, total: int | None) -> Block:
    return {
        "type": "text_editor_code_execution_view_result",
        "file_type": file_type,
        "content": content,
        "num_lines": shown,
        "start_line": first,
        "total_lines": total,
    }


# create, str_replace


async def _create(files: AsyncFiles, path: str, text: str) -> Edited:
    try:
        was_there = (await files.stat(path)).type != "folder"
        if not was_there:
            raise _Refused(f"{path!r} is a folder")
    except FileNotFound:
        was_there = False
    await files.write(path, _encoded(text, "file_text"))
    content: Block = {"type": "text_editor_code_execution_create_result", "is_file_update": was_there}
    return Edited(content, f"{path} was {'overwritten' if was_there else 'created'}")


async def _replace(files: AsyncFiles, path: str, old: str, new: str) -> Edited:
    if not old:
        raise _Refused("old_str must not be empty")
    try:
        data = await _read(files, path, _FILE_BYTES)
    except FileIsFolder:
        raise _Refused(f"{path!r} is a folder") from None
    # Bytes that are not UTF-8 are written back unchanged.
    text = data.decode("utf-8", "surrogateescape")
    begin = text.find(old)
    if begin < 0:
        raise _Refused(f"old_str does not occur in {path}")
    again = text.find(old, begin + 1)
    if again >= 0:
        at = ", ".join(str(text.count("\n", 0, found) + 1) for found in (begin, again))
        raise _Refused(
            f"old_str occurs more than once in {path}, in lines {at}: give more of the text, so that it is unique"
        )
    _encoded(new, "new_str")
    changed = text[:begin] + new + text[begin + len(old) :]
    await files.write(path, changed.encode("utf-8", "surrogateescape"))
    content = _replaced(text, changed)
    return Edited(content, f"{path} was changed:\n" + "\n".join(content["lines"]))  # type: ignore[arg-type]


def _replaced(before: str, after: str) -> Block:
    """The lines that differ, as a diff without context."""
    old, new = before.split("\n"), after.split("\n")
    shorter = min(len(old), len(new))
    start = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    tail = next((at for at in range(shorter - start) if old[-1 - at] != new[-1 - at]), shorter - start)
    removed, added = old[start : len(old) - tail], new[start : len(new) - tail]
    lines = [f"-{line}" for line in removed] + [f"+{line}" for line in added]
    return {
        "type": "text_editor_code_execution_str_replace_result",
        "old_start": start + 1,
        "old_lines": len(removed),
        "new_start": start + 1,
        "new_lines": len(added),
        "lines": [line.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for line in lines],
    }


# Reading


async def _read(files: AsyncFiles, path: str, bytes_at_most: int) -> bytes:
    """Read a whole file. Its size is known only when it was read, because it may change meanwhile."""
    data = bytearray()
    async with aclosing(files.read_stream(path)) as pieces:
        async for piece in pieces:
            data += piece
            if len(data) > bytes_at_most:
                raise _Refused(
                    f"{path!r} is longer than {bytes_at_most} bytes: use bash or Python to look at parts of it"
                )
    return bytes(data)


def _text(given: Mapping[str, object], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise _Refused(f"{name!r} is required and must be a string")
    if name == "path" and (not value or "\0" in value):
        raise _Refused("'path' must be the path of a file")
    return value


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise _Refused(f"{name!r} has a lone surrogate, which no file can hold") from None
