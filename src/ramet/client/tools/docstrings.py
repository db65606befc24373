"""Reads the descriptions of parameters from a docstring, in the three common styles.

:param sku: of the product        Args:                           Parameters
:param int days: how many             sku (str): of the product   ----------
                                      days: how many              sku : str
                                                                      of the product
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_FIELD = re.compile(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_SECTION = re.compile(
    r"(?:args|arguments|parameters|params|keyword args|keyword arguments|other parameters)\s*:?\s*", re.I
)
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_TYPED_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_RULE = re.compile(r"\s*-{3,}\s*")


def parameter_descriptions(docstring: str) -> dict[str, str]:
    """Return the descriptions by parameter name. Takes a docstring without its indentation."""
    lines = docstring.splitlines()
    found: dict[str, list[str]] = {}
    for number, line in enumerate(lines):
        if field := _FIELD.match(line.strip()):
            found[field[1]] = [field[2], *_deeper(lines[number + 1 :], _indent(line), blank_ends=True)]
        elif _SECTION.fullmatch(line.strip()):
            rest = lines[number + 1 :]
            if rest and _RULE.fullmatch(rest[0]):
                found.update(_underlined(rest[1:], _indent(line)))
            elif line.rstrip().endswith(":"):
                found.update(_indented(rest, _indent(line)))
    texts = {name: " ".join(part.strip() for part in parts if part.strip()) for name, parts in found.items()}
    return {name: text for name, text in texts.items() if text}


def _indented(lines: list[str], outside: int) -> Iterator[tuple[str, list[str]]]:
    """Yield entries ``name (type): text``: each starts at the first indentation, and continues on deeper lines."""
    section = list(_deeper(lines, outside))
    first = next((_indent(line) for line in section if line.strip()), 0)
    for number, line in enumerate(section):
        entry = _ENTRY.match(line.strip())
        if entry is not None and _indent(line) == first:
            yield entry[1], [entry[2], *_deeper(section[number + 1 :], first)]


def _underlined(lines: list[str], outside: int) -> Iterator[tuple[str, list[str]]]:
    """Yield entries ``name : type`` with their text on deeper lines below."""
    for number, line in enumerate(lines):
        if number + 1 < len(lines) and _RULE.fullmatch(lines[number + 1]) and line.strip():
            return  # the heading of the next section
        entry = _TYPED_ENTRY.fullmatch(line.strip())
        if entry is not None and _indent(line) == outside:
            text = list(_deeper(lines[number + 1 :], outside))
            for name in entry[1].split(","):
                yield name.strip().lstrip("*"), text


def _deeper(lines: Iterable[str], outside: int, blank_ends: bool = False) -> Iterator[str]:
    """Yield lines up to the first that is not indented deeper than ``outside``."""
    for line in lines:
        if line.strip() and _indent(line) <= outside:
            return
        if blank_ends and not line.strip():
            return
        yield line


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
