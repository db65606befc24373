"""Finds the modules beside a script that it imports: `ramet run` copies them into the sandbox with it.

It takes only modules imported by name, from the script's own folder, and no links: a script in a home folder takes no
other files along, and a link planted there leads nowhere. A regular expression finds the imports. The Python parser is
not used, because an attacker may have written the script to crash it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from ramet.cli.output import shown, size
from ramet.errors import LimitReached

FILES_AT_MOST = 500
BYTES_AT_MOST = 64 * 1024 * 1024
_SCANNED_BYTES = 1024 * 1024
_DEEP_AT_MOST = 20

_IMPORT = re.compile(r"(?:^|[;:])[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([^#;\n]+))", re.MULTILINE)


class Neighbour(NamedTuple):
    """A file beside a script: where it is, and its path below the script's folder."""

    local: str
    path: str


def neighbours(script: str, source: bytes) -> list[Neighbour]:
    """Return the files that the script needs beside itself. Raise LimitReached if there are too many to be intended."""
    real = os.path.realpath(script)
    folder = os.path.dirname(real)
    found: dict[str, Neighbour] = {}
    total = 0
    known: set[str] = set()
    waiting = sorted(_imported(source))
    while waiting:
        name = waiting.pop()
        if name in known:
            continue
        known.add(name)
        for one in _module(folder, name):
            if one.local == real or one.path in found:
                continue
            found[one.path] = one
            total += os.lstat(one.local).st_size
            if len(found) > FILES_AT_MOST or total > BYTES_AT_MOST:
                raise LimitReached(
                    f"the modules beside {shown(script)} that it imports are more than {FILES_AT_MOST} files or "
                    f"{size(BYTES_AT_MOST)}",
                    hint="--alone copies none of them; --mount shows a folder, --upload copies a file",
                )
            if one.path.endswith(".py"):
                waiting += sorted(_imported(_beginning(one.local)) - known)
    return list(found.values())


def _imported(source: bytes) -> set[str]:
    """Return the first parts of module names. Too many do no harm: only modules beside the script are used."""
    names: set[str] = set()
    for one, several in _IMPORT.findall(source[:_SCANNED_BYTES].decode("utf-8", "replace")):
        for part in [one] if one else several.split(","):
            name = part.split(maxsplit=1)[0].partition(".")[0] if part.strip() else ""
            if name.isidentifier():
                names.add(name)
    return names


def _module(folder: str, name: str) -> Iterator[Neighbour]:
    """Yield the files of a module or package. For a folder that is not a package, only its modules."""
    file = f"{name}.py"
    if _is_file(os.path.join(folder, file)):
        yield Neighbour(os.path.join(folder, file), file)
    inside = os.path.join(folder, name)
    if _is_folder(inside):
        yield from _package(inside, name, _is_file(os.path.join(inside, "__init__.py")), 0)


def _package(folder: str, path: str, regular: bool, depth: int) -> Iterator[Neighbour]:
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return  # treated as missing, as Python does
    for entry in inside:
        below = f"{path}/{entry.name}"
        if entry.name.startswith(".") or entry.name == "__pycache__" or entry.is_symlink():
            continue
        if entry.is_file(follow_symlinks=False) and (regular or entry.name.endswith(".py")):
            yield Neighbour(entry.path, below)
        elif entry.is_dir(follow_symlinks=False) and depth < _DEEP_AT_MOST:
            yield from _package(entry.path, below, regular, depth + 1)


def _beginning(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_SCANNED_BYTES)
    except OSError:
        return b""


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
