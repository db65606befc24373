"""What one sandbox takes from another: what was asked for, and what was taken."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Literal

from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.argument_errors import Words, kind_of, must
from ramet.protocol.checks import check_path
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.differences import FileChange
from ramet.protocol.values.value_bounds import check_name

NAMES_AT_MOST = 1000
PATHS_AT_MOST = 1000
PREFERENCES = ("ours", "theirs")

Chosen = tuple[str, ...] | Literal[True]  # True: all that was changed


@dataclass(frozen=True, slots=True)
class TakeSpec:
    """Names and paths to take. ``prefer`` decides where both sandboxes have changed the same; None: neither."""

    names: Chosen
    files: Chosen
    prefer: str | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """What a sandbox has taken from another. What both had alike already is not in here."""

    names: tuple[str, ...] = ()
    files: tuple[FileChange, ...] = ()
    size_bytes: int = 0  # of values and contents that were copied

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to take."""
        return not self.names and not self.files

    def __str__(self) -> str:
        if self.is_empty:
            return "nothing to take"
        return "\n".join([*self.names, *(f"{change.change} {_printable(change.path)}" for change in self.files)])


def chosen_names(names: object) -> Chosen:
    """The names that are given, each once, in Python's normal form. Raises InvalidArgument."""
    chosen = _chosen("names", names, NAMES_AT_MOST)
    return chosen if chosen is True else tuple(dict.fromkeys(check_name(name) for name in chosen))


def chosen_paths(files: object) -> Chosen:
    """The paths that are given, each once, absolute and normalised. Raises InvalidArgument."""
    chosen = _chosen("files", files, PATHS_AT_MOST)
    if chosen is True:
        return True
    for path in chosen:
        check_path(path, "files")
    # normpath keeps two leading slashes.
    absolute = ("/" + posixpath.normpath(posixpath.join("/root", path)).lstrip("/") for path in chosen)
    return tuple(dict.fromkeys(absolute))


def _chosen(argument: str, given: object, at_most: int) -> Chosen:
    if given is None or given is False:
        return ()
    if given is True:
        return True
    if not isinstance(given, list | tuple | set | frozenset):
        raise must(argument, "be a list, or True for all that was changed", kind_of(given))
    if len(given) > at_most:
        raise must(argument, f"have at most {at_most} entries", Words(f"{len(given)}"))
    for one in given:
        if not isinstance(one, str):
            raise must(argument, "be a list of strings", Words(f"one with {kind_of(one)}"))
    return tuple(given)


def read_taken(header: Mapping[str, object], files: tuple[FileChange, ...]) -> Taken:
    size_bytes = fields.natural(header, "size_bytes")
    names = fields.texts(header, "names")
    if len(names) > len(set(names)):
        raise ProtocolError("a name that was taken twice")
    return Taken(names, files, size_bytes)


def _printable(path: str) -> str:
    return path if path.isprintable() else ascii(path)
