"""What comes back from a cell: results, events of a stream, and what a sandbox says of itself and of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ramet.protocol import fields
from ramet.protocol.specs import Limits


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception that ended a cell."""

    name: str
    message: str

    @classmethod
    def read(cls, header: Mapping[str, object]) -> CellError:
        return cls(name=fields.text(header, "name"), message=fields.text(header, "message"))


@dataclass(frozen=True, slots=True)
class Truncated:
    """More was printed, or displayed, than a result keeps.

    The counts are of all bytes that the cell wrote; a path names the file in the sandbox that holds the whole stream.
    """

    stdout_bytes: int
    stderr_bytes: int
    stdout_path: str | None
    stderr_path: str | None
    results_dropped: int

    @classmethod
    def read(cls, header: Mapping[str, object]) -> Truncated:
        return cls(
            stdout_bytes=fields.natural(header, "stdout_bytes"),
            stderr_bytes=fields.natural(header, "stderr_bytes"),
            stdout_path=fields.optional_text(header, "stdout_path"),
            stderr_path=fields.optional_text(header, "stderr_path"),
            results_dropped=fields.natural(header, "results_dropped"),
        )


@dataclass(frozen=True, slots=True)
class RichResult:
    """A value or a displayed object, in each form it has, by MIME type."""

    what: Literal["value", "display"]
    data: Mapping[str, object] = field(repr=False)

    def __repr__(self) -> str:
        return f"<RichResult {self.what}: {', '.join(self.data)}>"

    @property
    def text(self) -> str | None:
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        return self._text("text/html")

    @property
    def svg(self) -> str | None:
        return self._text("image/svg+xml")

    @property
    def latex(self) -> str | None:
        return self._text("text/latex")

    @property
    def png(self) -> bytes | None:
        value = self.data.get("image/png")
        return value if isinstance(value, bytes) else None

    @property
    def json(self) -> object:
        return self.data.get("application/json")

    def _text(self, mime: str) -> str | None:
        value = self.data.get(mime)
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """A call of a tool by the code of a cell. ``arguments`` is None where they were too long to keep."""

    name: str
    arguments: dict[str, object] | None
    duration_seconds: float
    outcome: str  # "ok", or how it failed: "error", "invalid", "timeout", "refused", "unknown", "gone", "cancelled"
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """How a cell ended, and all it printed and showed."""

    stdout: str
    stderr: str
    exit_code: int
    value: str | None
    results: tuple[RichResult, ...]
    interrupted: bool
    state: Literal["kept", "lost"]
    cause: str | None
    restarted: bool
    truncated: Truncated | None
    background: str
    error: CellError | None
    duration_seconds: float
    cell_id: int
    tool_calls: tuple[ToolCallRecord, ...] = ()
    tool_calls_dropped: int = 0  # more than are kept

    @property
    def ok(self) -> bool:
        """The cell ended by itself with exit code 0."""
        return self.exit_code == 0 and self.state == "kept" and not self.interrupted


OutputStream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class OutputEvent:
    """A piece of text that a running cell printed."""

    type: OutputStream
    data: str


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """A value or a displayed object of a running cell."""

    result: RichResult
    type: Literal["result"] = "result"


@dataclass(frozen=True, slots=True)
class ExitEvent:
    """The cell has ended: the last event of a stream. Its result holds none of the text that was streamed."""

    code: int
    result: Result
    type: Literal["exit"] = "exit"


Event = OutputEvent | ResultEvent | ExitEvent


FileType = Literal["file", "folder", "link", "other"]
_FILE_TYPES: Mapping[str, FileType] = {"file": "file", "folder": "folder", "link": "link"}


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of a sandbox's file tree."""

    name: str
    type: FileType
    size_bytes: int
    mode: int  # permission bits
    modified_seconds: float  # since the epoch

    @classmethod
    def read(cls, header: Mapping[str, object]) -> FileInfo:
        return cls(
            name=fields.text(header, "name"),
            type=_FILE_TYPES.get(fields.text(header, "type"), "other"),
            size_bytes=fields.whole(header, "size_bytes"),
            mode=fields.natural(header, "mode"),
            modified_seconds=fields.number(header, "modified_seconds"),
        )


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What a sandbox is, uses, and is really walled in by."""

    id: str
    state: str  # "idle", "running" or "lost"
    pid: int  # of the REPL, as the sandbox itself sees it
    python: str
    template: str
    waiting: int  # cells in the queue behind the running one
    limits: Limits
    usage: Mapping[str, int]
    walls: Mapping[str, object]
    owner: str  # empty where an engine has one owner only
    parent: str | None  # the sandbox it was forked from
    persistent: bool  # its state is kept when it ends
    created_ms: int  # since the epoch, as the next two
    expires_ms: int | None  # when it ends by itself
    idle_expires_ms: int | None  # when it ends by itself if it is not used

    @classmethod
    def read(cls, header: Mapping[str, object]) -> SandboxInfo:
        usage = fields.mapping(header, "usage")
        return cls(
            id=fields.text(header, "id"),
            state=fields.text(header, "state"),
            pid=fields.whole(header, "pid"),
            python=fields.text(header, "python"),
            template=fields.text(header, "template"),
            waiting=fields.natural(header, "waiting"),
            limits=Limits.read(fields.mapping(header, "limits")),
            usage={name: fields.whole(usage, name) for name in usage},
            walls=fields.mapping(header, "walls"),
            owner=fields.text(header, "owner"),
            parent=fields.optional_text(header, "parent"),
            persistent=fields.flag(header, "persistent"),
            created_ms=fields.whole(header, "created_ms"),
            expires_ms=fields.optional_whole(header, "expires_ms"),
            idle_expires_ms=fields.optional_whole(header, "idle_expires_ms"),
        )


def decode_form(form: str, data: bytes) -> object:
    """One form of a rich result. JSON that is none, or is nested beyond reason, stays text: it is the user's data."""
    if form == "b":
        return data
    text = data.decode("utf-8", "replace")
    if form == "j":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text
