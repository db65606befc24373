"""What a user may ask for of a sandbox that exists: the arguments of its operations, each described once.

As in ``sandboxes``, a field has a place in the frames, in the JSON body, in OpenAPI and, if it says so, in the command
line. Each side of a trust border reads and checks the same struct: the SDK and the server what a user gave, the engine
what a frame says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

from ramet.protocol.argument_errors import Words, must
from ramet.protocol.checks import CHILDREN_AT_MOST, MEMORY_MIB_AT_LEAST, PATH_BYTES_AT_MOST
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.requests.options import (
    FLAG,
    PATH,
    TEXT,
    WHOLE,
    CommandLine,
    Kind,
    Schema,
    check_options,
    option,
    read_options,
    whole_from,
    write_options,
)
from ramet.protocol.values.history import POINT_ID, UNDO_AT_MOST, Point, point_id
from ramet.protocol.values.takes import (
    NAMES_AT_MOST,
    PATHS_AT_MOST,
    PREFERENCES,
    Chosen,
    TakeSpec,
    chosen_names,
    chosen_paths,
)


class OperationOptions:
    """The arguments of one operation; those that inherit this are frozen dataclasses of options."""

    __slots__ = ()

    def check(self) -> None:
        """Raises InvalidArgument for one that is not allowed."""
        check_options(type(self), self)

    def header(self) -> dict[str, object]:
        """The fields of a frame. Those with a default are in it too: an engine of an earlier version expects them."""
        return write_options(type(self), self, defaults=True)

    @classmethod
    def read(cls, header: Mapping[str, object]) -> Self:
        """Those in the header of a frame, checked. Raises InvalidArgument."""
        options = cls(**read_options(cls, header, strict=False))
        options.check()
        return options


def _check_point(name: str, point: object) -> None:
    point_id(point, name)


_POINT = Kind(
    TEXT.read,
    {"type": "string", "pattern": f"^{POINT_ID.pattern}$"},
    point_id,
    check=_check_point,
    words="a string",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoOptions(OperationOptions):
    """The arguments of ``undo``."""

    n: int = option(
        WHOLE,
        "How many cells to take back",
        1,
        check=whole_from(1, UNDO_AT_MOST),
        schema={"minimum": 1, "maximum": UNDO_AT_MOST},
        http_help="Cells. Default: 1.",
        frame_name="count",
        command_line=CommandLine("", "number of cells (default: 1)", "N"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindOptions(OperationOptions):
    """The arguments of ``rewind``."""

    point: Point | str = option(
        _POINT,
        "Id of a point, as history shows it",
        required=True,
        command_line=CommandLine("", "id of a point, as `ramet log` shows it", "POINT"),
    )

    @property
    def point_id(self) -> str:
        return point_id(self.point)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOptions(OperationOptions):
    """The arguments of ``fork``."""

    n: int = option(
        WHOLE,
        "How many copies",
        1,
        check=whole_from(1, CHILDREN_AT_MOST),
        schema={"minimum": 1, "maximum": CHILDREN_AT_MOST},
        frame_name="count",
        command_line=CommandLine("--count", "number of copies (default: 1)", "N", short="-n"),
    )
    reseed: bool = option(
        FLAG,
        "Give each copy different random numbers",
        False,
        http_help="Random generators of the copies go on differently. Default: false, they go on as those of the "
        "sandbox.",
        command_line=CommandLine("--reseed", "give each copy random numbers of its own", ""),
    )
    inherit_secrets: bool = option(
        FLAG,
        "Let the copies use the secrets of the sandbox",
        False,
        http_help="The copies may use the secrets of the sandbox, with placeholders of their own. Default: false.",
        command_line=CommandLine("--inherit-secrets", "let the copies use the secrets of the sandbox", ""),
    )
    at: Point | str | None = option(
        _POINT,
        "Id of a point in its history that the copies begin at",
        http_help="The id of a point in its history that the copies begin at. Default: as the sandbox is now.",
        command_line=CommandLine("--at", "begin at this point of its history, as `ramet log` shows it", "POINT"),
    )

    @property
    def point_id(self) -> str | None:
        return None if self.at is None else point_id(self.at, "at")


def _chosen(choose: Callable[[object], Chosen], items: Schema, parse: Callable[[str], Any] = str) -> Kind:
    """Several texts, or True for all that the other sandbox has changed."""

    def write(given: object) -> object:
        chosen = choose(given)
        return chosen if chosen is True else list(chosen)

    def check(name: str, given: object) -> None:
        choose(given)

    return Kind(
        lambda name, given: choose(given), {"anyOf": [{"type": "array", **items}, {"const": True}]}, write, check, parse
    )


def _check_prefer(name: str, prefer: object) -> None:
    if prefer not in PREFERENCES:
        raise must(name, 'be "ours", "theirs" or None', prefer)


_ALL = "or true for all that the other has changed since the two were one. Default: none."


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOptions(OperationOptions):
    """The arguments of ``take``, beside the sandbox or snapshot that has them."""

    names: Collection[str] | bool | None = option(
        _chosen(
            chosen_names,
            {"items": {"type": "string"}, "maxItems": NAMES_AT_MOST},
            lambda text: [name.strip() for name in text.split(",")],
        ),
        "Variables to take",
        http_help=f"Variables, {_ALL}",
        command_line=CommandLine(
            "--names",
            "variables to take",
            "A,B",
            all_flag="--all-names",
            all_help="take all variables that it has changed",
        ),
    )
    files: Collection[str] | bool | None = option(
        _chosen(
            chosen_paths,
            {"items": {"type": "string", "minLength": 1, "maxLength": PATH_BYTES_AT_MOST}, "maxItems": PATHS_AT_MOST},
        ),
        "Files, folders and patterns to take",
        http_help=f"Paths, folders and patterns, {_ALL}",
        command_line=CommandLine(
            "--files",
            "files, folders and patterns to take",
            "PATH",
            several=True,
            all_flag="--all-files",
            all_help="take all files that it has changed",
        ),
    )
    prefer: str | None = option(
        TEXT,
        "Whose to keep where both have changed the same",
        check=_check_prefer,
        schema={"enum": list(PREFERENCES)},
        http_help="Whose to keep where both have changed the same.",
        command_line=CommandLine("--prefer", "whose to keep where both have changed the same", ""),
    )

    def check(self) -> None:
        check_options(TakeOptions, self)
        spec = self.spec()
        if not spec.names and not spec.files:
            raise must("names", "say what to take", Words("neither"), subject="names or files")

    def spec(self) -> TakeSpec:
        return TakeSpec(chosen_names(self.names), chosen_paths(self.files), self.prefer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions(OperationOptions):
    """The arguments of the import of a snapshot, beside the file and the name: a file decides on none of them."""

    python: str | None = option(
        PATH,
        "Interpreter that the snapshot was made with, unless ours",
        embedded_only=True,
        command_line=CommandLine(
            "--python", "with import: the interpreter that the image was made with, unless ours", ""
        ),
    )
    memory_mib: int | None = option(
        WHOLE,
        "Limit of its sandboxes, and of the memory that it holds",
        check=whole_from(MEMORY_MIB_AT_LEAST),
        schema={"minimum": MEMORY_MIB_AT_LEAST},
        http_help="The limit of its sandboxes, and of the memory that it holds.",
        command_line=CommandLine("--memory-mib", "with import: the limit of its sandboxes, and of what it holds", ""),
    )
    disk_mib: int | None = option(
        WHOLE,
        "Limit of its sandboxes' files, and of those that it holds",
        check=whole_from(1),
        schema={"minimum": 1},
        http_help="The same for its files.",
        command_line=CommandLine("--disk-mib", "with import: the same for its files", ""),
    )
