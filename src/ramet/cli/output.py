"""Output that all commands share: tables, notes on standard error, colours on a terminal only."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

from ramet.cli.parsing import in_words_of_options
from ramet.errors import InvalidArgument, RametError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def print_note(text: str) -> None:
    """Print to standard error, for what a script that reads the output does not want."""
    print(text, file=sys.stderr)


def print_error(error: RametError, chosen: argparse.Namespace | None = None) -> None:
    """Print an error. ``chosen`` is the parsed command line: errors then name options instead of Python arguments."""
    if isinstance(error, InvalidArgument) and chosen is not None:
        error = in_words_of_options(error, getattr(chosen, "options", ()))
    print_note(f"{paint('ramet:', 'red', sys.stderr)} {error}")


def coloured(stream: TextIO) -> bool:
    """Whether to use colours: only on a terminal that can, and unless NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_CODES = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}


def paint(text: str, colour: str, stream: TextIO) -> str:
    return f"\033[{_CODES[colour]}m{text}\033[0m" if coloured(stream) else text


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show on a terminal what the block waits for, while it runs."""
    show_progress(f"{text} ...")
    try:
        yield
    finally:
        show_progress("")


def show_progress(text: str) -> None:
    """Show one line on standard error that the next one replaces; an empty text removes it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def print_record(record: DataclassInstance, as_json: bool) -> None:
    print(json.dumps(asdict(record)) if as_json else record)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with aligned columns. Escapes characters that would move the terminal's cursor."""
    lines = [[shown(text) for text in line] for line in (titles, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def shown(text: str) -> str:
    """Escape characters that would move the cursor, in text from a sandbox, a server or a folder."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    head, *rest = table(titles, rows)
    print(paint(head, "bold", sys.stdout))
    for line in rest:
        print(line)


def duration(seconds: float) -> str:
    """Format a time span in at most two units."""
    whole = max(0, round(seconds))
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit} {rest}{small_unit}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def size(count: int) -> str:
    """Format a number of bytes for people."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.0f} {units[0]}" if value >= 100 or units[0] == "B" else f"{value:.1f} {units[0]}"
