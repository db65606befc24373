"""The cost of forks, and differences between two sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.differences import FileChange, FileState

Change = Literal["added", "removed", "changed"]
_CHANGES: Mapping[str, Change] = {"added": "added", "removed": "removed", "changed": "changed"}
_MARKS = {"added": "+", "removed": "-", "changed": "~", "modified": "~"}
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class ForkInfo:
    """The cost of a fork: of all children together, or of one."""

    pause_seconds: float  # how long the parent stood still
    total_seconds: float  # from the parent's turn in the queue until its children can take a cell
    unique_bytes: int  # memory shared with no other sandbox, right after the fork
    file_bytes_copied: int  # copied once for all children of a fork

    @classmethod
    def read(cls, header: Mapping[str, object]) -> ForkInfo:
        return cls(
            pause_seconds=fields.number(header, "pause_seconds"),
            total_seconds=fields.number(header, "total_seconds"),
            unique_bytes=fields.natural(header, "unique_bytes"),
            file_bytes_copied=fields.natural(header, "file_bytes_copied"),
        )


@dataclass(frozen=True, slots=True)
class NameValue:
    """A name of a namespace as seen from outside, never the value itself."""

    type: str
    value: str  # short, one line
    size_bytes: int

    @classmethod
    def read(cls, header: Mapping[str, object]) -> NameValue:
        return cls(
            type=fields.text(header, "type"),
            value=fields.text(header, "value"),
            size_bytes=fields.natural(header, "size_bytes"),
        )

    def __str__(self) -> str:
        text = self.value if len(self.value) <= _SHOWN_CHARACTERS else self.value[: _SHOWN_CHARACTERS - 3] + "..."
        return f"{self.type} {text}"


@dataclass(frozen=True, slots=True)
class NameChange:
    """A name that differs between two namespaces. ``approximate``: judged by type, size and short value only."""

    name: str
    change: Change
    before: NameValue | None  # None: the name was added
    after: NameValue | None  # None: the name was removed
    approximate: bool = False

    @classmethod
    def read(cls, header: Mapping[str, object]) -> NameChange:
        change = _CHANGES.get(fields.text(header, "change"))
        if change is None:
            raise ProtocolError("a change of a name is one of added, removed, changed")
        before, after = fields.optional_mapping(header, "before"), fields.optional_mapping(header, "after")
        return cls(
            name=fields.text(header, "name"),
            change=change,
            before=None if before is None else NameValue.read(before),
            after=None if after is None else NameValue.read(after),
            approximate=fields.flag(header, "approximate"),
        )

    def __str__(self) -> str:
        told = " -> ".join(str(value) for value in (self.before, self.after) if value is not None)
        return f"{_MARKS[self.change]} {self.name}: {told}{' (approximate)' if self.approximate else ''}"


@dataclass(frozen=True, slots=True)
class Diff:
    """The changes that would turn one sandbox into the other: files by path, and names."""

    files: tuple[FileChange, ...] = ()
    names: tuple[NameChange, ...] = ()
    uncompared: tuple[str, ...] = ()  # names that look alike but could not be compared further

    @property
    def is_empty(self) -> bool:
        """Whether no difference was found."""
        return not self.files and not self.names

    def __str__(self) -> str:
        lines = ["no differences"] if self.is_empty else []
        if self.files:
            lines += [f"files: {_counts(self.files)}", *(f"  {_file_line(change)}" for change in self.files)]
        if self.names:
            lines += [f"names: {_counts(self.names)}", *(f"  {change}" for change in self.names)]
        if self.uncompared:
            lines.append(f"names that could not be compared: {', '.join(self.uncompared)}")
        return "\n".join(lines)


def _counts(changes: tuple[FileChange, ...] | tuple[NameChange, ...]) -> str:
    kinds = [change.change for change in changes]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(sorted(kinds)))


def _file_line(change: FileChange) -> str:
    # A path of the sandbox may contain anything; it must not move the terminal's cursor.
    path = change.path if change.path.isprintable() else ascii(change.path)
    told = " -> ".join(_file_state(state) for state in (change.before, change.after) if state is not None)
    return f"{_MARKS[change.change]} {path}: {told}{' (too large to compare)' if change.approximate else ''}"


def _file_state(state: FileState) -> str:
    if state.type == "link":
        return f"link to {ascii(state.target)}"
    if state.type != "file":
        return state.type
    return f"file, {state.size_bytes} {'byte' if state.size_bytes == 1 else 'bytes'}"


def read_file_change(header: object) -> FileChange:
    if not isinstance(header, dict):
        raise ProtocolError("a change of a file is an object")
    return FileChange.read(header)


def read_name_change(header: object) -> NameChange:
    if not isinstance(header, dict):
        raise ProtocolError("a change of a name is an object")
    return NameChange.read(header)
