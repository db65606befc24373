"""A cell's result as one text: whole for a person who prints it, bounded for a model that reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.protocol.values.results import Result, RichResult

# Limit for ``Result.text``: about 5000 tokens, a guess at what a model can use of one result.
TEXT_CHARACTERS_AT_MOST = 20_000
NOTHING = "(no output)"
_MARKER_CHARACTERS = 60  # more than the line that marks what is left out
_NOTES_CHARACTERS = 1_000
# The plain text of IPython's own display objects, which says nothing of what is in them; and what does, best first.
_NAME_OF_A_CLASS = re.compile(r"<IPython\.[\w.]+ object>")
_SPEAKING = ("text/markdown", "text/latex", "text/html", "application/json")
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")


def whole_text(result: Result) -> str:
    """Return the cell's output, displayed objects and value, in this order, with notes on how it ended."""
    return "\n".join((*_parts(result), *_notes(result)))


def bounded_text(result: Result, most: int = TEXT_CHARACTERS_AT_MOST) -> str:
    """Return the same in at most ``most`` characters.

    The parts share the room; the middle of a long one is left out.
    """
    notes = "\n".join(_notes(result))
    if len(notes) > _NOTES_CHARACTERS:
        notes = _bounded(notes, _NOTES_CHARACTERS)
    parts = _parts(result)
    room = most - len(notes) - len(parts)
    texts = [_bounded(part, share) for part, share in zip(parts, _shares(list(map(len, parts)), room), strict=True)]
    return "\n".join((*texts, *([notes] if notes else ()))) or NOTHING


def _parts(result: Result) -> list[str]:
    shown = "\n".join(text for one in result.results if (text := _shown(one)) is not None)
    parts = (result.background, result.stdout, shown, _value(result), result.stderr)
    return [text for part in parts if (text := part.rstrip("\n"))]


def _shown(one: RichResult) -> str | None:
    """Return the text of a displayed object. The cell's value appears elsewhere."""
    if one.what == "value":
        return None
    return one.readable or f"<{', '.join(one.data)}>"


def _value(result: Result) -> str:
    value = result.value or ""
    if _NAME_OF_A_CLASS.fullmatch(value):
        return next((one.readable or value for one in result.results if one.what == "value"), value)
    return value


def readable(one: RichResult) -> str | None:
    """Return the text of an object: its plain text, or what it holds if that only names its class."""
    if one.text is None or not _NAME_OF_A_CLASS.fullmatch(one.text):
        return one.text
    for name in _SPEAKING:
        content = one.data.get(name)
        if content is not None:
            return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
    return one.text


def _notes(result: Result) -> Iterator[str]:
    pictures = sum(any(name in one.data for name in _PICTURES) for one in result.results)
    if pictures:
        yield f"({pictures} picture{'s' if pictures > 1 else ''} in results)"
    cut = result.truncated
    if cut is not None:
        paths = [path for path in (cut.stdout_path, cut.stderr_path) if path is not None]
        where = f"; all of it is in {' and '.join(paths)} of the sandbox" if paths else ""
        what = "the value is longer than a result keeps" if cut.value_bytes else "the output is longer than is kept"
        yield f"({what}{where})"
    if result.interrupted:
        why = "timed out" if result.cause == "timeout" else "was interrupted"
        yield f"(the cell {why} after {result.duration_seconds:.1f} seconds)"
    # A Python process that ended has already said so in stderr.
    if result.error is not None and not result.stderr:
        yield f"{result.error.name}: {result.error.message}"
    elif result.exit_code != 0 and result.error is None:
        yield f"(exit code {result.exit_code})"


def _shares(lengths: list[int], room: int) -> list[int]:
    """Return how much of each part to keep: short ones are kept whole, long ones share the rest."""
    shares = list(lengths)
    left, longest = room, sorted(range(len(lengths)), key=lambda place: lengths[place])
    for done, place in enumerate(longest):
        shares[place] = min(lengths[place], left // (len(lengths) - done))
        left -= shares[place]
    return shares


def _bounded(text: str, most: int) -> str:
    """Return the text, or its beginning and end if it is too long: more of the end, where errors stand."""
    if len(text) <= most:
        return text
    room = max(most - _MARKER_CHARACTERS, 0)
    head = room * 2 // 5
    tail = room - head
    left_out = f"\n... {len(text) - room} characters left out ...\n"
    return f"{text[:head]}{left_out}{text[len(text) - tail :]}"
