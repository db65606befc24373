"""Parses the ``Range`` header, as far as RFC 9110 requires it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ONE_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """A number of bytes from an offset on."""

    offset: int
    length: int


class Unsatisfiable(Exception):
    """Raised for a range after the end of the file."""


def asked_part(header: str | None, size_bytes: int) -> Part | None:
    """The part that a request asks for. None: the whole file, as there is no range, or several, or an unknown unit."""
    found = None if header is None else _ONE_RANGE.fullmatch(header)
    if found is None:
        return None
    first, last = found.groups()
    if not first and not last:
        return None
    if not first:
        length = min(int(last), size_bytes)
        if length == 0:
            raise Unsatisfiable
        return Part(size_bytes - length, length)
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size_bytes:
        raise Unsatisfiable
    end = min(int(last), size_bytes - 1) if last else size_bytes - 1
    return Part(start, end - start + 1)
