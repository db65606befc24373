"""The messages that docs/troubleshooting.md quotes are messages that the source prints."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
_GAP = "\0"  # stands for what an f-string puts in
# Printed by curl and git, not by us.
_OF_OTHERS = ("Could not resolve host: example",)


def quoted() -> list[str]:
    """Lines that begin with `> `, and cells of tables that do."""
    lines = re.findall(r"^> (.+)$", PAGE, re.MULTILINE)
    return [*lines, *re.findall(r"^\| > (.+?) \|", PAGE, re.MULTILINE)]


@cache
def messages() -> tuple[str, ...]:
    """Every string of the source, an f-string with a gap for each value."""
    found: list[str] = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else _GAP for part in node.values)
                found.append("".join(str(part) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


def test_the_page_quotes_messages() -> None:
    assert len(quoted()) > 10


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_is_in_the_source(message: str) -> None:
    """Each part between two gaps stands in some string of the source: a message may be put together from several."""
    parts = [part.strip(" ;:,") for part in message.split("...")]
    known = (*messages(), *_OF_OTHERS)
    missing = [part for part in parts if part and not any(part in text for text in known)]
    assert not missing
    assert sum(map(len, parts)) > 10, "quote enough to tell which message it is"
