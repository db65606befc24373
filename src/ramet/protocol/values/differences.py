"""Differences between the files of two sandboxes, one value for each path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.results import FileType

ChangeKind = Literal["added", "removed", "modified"]

_KINDS: dict[str, ChangeKind] = {"added": "added", "removed": "removed", "modified": "modified"}
_TYPES: dict[str, FileType] = {"file": "file", "folder": "folder", "link": "link", "other": "other"}


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of one path. Links are not followed."""

    type: FileType
    size_bytes: int
    mode: int  # permission bits
    digest: str | None = None  # SHA-256 of the content in hexadecimal; for files only, None for one that is too large
    target: str | None = None  # where a link points; for links only

    @classmethod
    def read(cls, header: Mapping[str, object]) -> FileState:
        return cls(
            type=_TYPES.get(fields.text(header, "type"), "other"),
            size_bytes=fields.natural(header, "size_bytes"),
            mode=fields.natural(header, "mode"),
            digest=fields.optional_text(header, "digest"),
            target=fields.optional_text(header, "target"),
        )


@dataclass(frozen=True, slots=True)
class FileChange:
    """One path that differs: what one sandbox has there (`before`), and what the other has (`after`).

    `approximate`: both have a file of that size and mode there, with more content than a comparison reads. It is not
    known whether it differs.
    """

    path: str  # absolute; bytes that are not UTF-8 appear as os.fsdecode shows them
    change: ChangeKind
    before: FileState | None  # None: the path was added
    after: FileState | None  # None: the path was removed
    approximate: bool = False

    @property
    def type(self) -> FileType:
        """The type of what is there now, or was there before it was removed."""
        state = self.after or self.before
        return state.type if state is not None else "other"

    @classmethod
    def read(cls, header: Mapping[str, object]) -> FileChange:
        kind = _KINDS.get(fields.text(header, "change"))
        if kind is None:
            raise ProtocolError(f"unknown kind of change: {header.get('change')!r}")
        return cls(
            path=fields.text(header, "path"),
            change=kind,
            before=_optional_state(header, "before"),
            after=_optional_state(header, "after"),
            approximate=header.get("approximate") is True,  # older engines do not send it
        )


def _optional_state(header: Mapping[str, object], name: str) -> FileState | None:
    return None if header.get(name) is None else FileState.read(fields.mapping(header, name))
