"""Results of cells, events of a stream, and descriptions of sandboxes and their files."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, field
from typing import Literal

from ramet.protocol import fields
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values import result_texts
from ramet.protocol.values.specs import Limits

# Of the namespace after a cell. "restored": the REPL ended in the cell, and the sandbox is back at its last kept state.
State = Literal["kept", "lost", "restored"]


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception that ended a cell; ``PythonEnded`` if the REPL itself ended in it."""

    name: str
    message: str

    @classmethod
    def read(cls, header: Mapping[str, object]) -> CellError:
        return cls(name=fields.text(header, "name"), message=fields.text(header, "message"))


@dataclass(frozen=True, slots=True)
class Truncated:
    """Says what a result leaves out: the cell printed or displayed more than a result keeps, or its value is longer.

    The counts include all bytes that the cell wrote; a path names the file in the sandbox that holds the whole stream.
    ``value_bytes`` is the length of the value's whole text if that was cut, else 0.
    """

    stdout_bytes: int
    stderr_bytes: int
    stdout_path: str | None
    stderr_path: str | None
    results_dropped: int
    value_bytes: int = 0

    @classmethod
    def read(cls, header: Mapping[str, object]) -> Truncated:
        return cls(
            stdout_bytes=fields.natural(header, "stdout_bytes"),
            stderr_bytes=fields.natural(header, "stderr_bytes"),
            stdout_path=fields.optional_text(header, "stdout_path"),
            stderr_path=fields.optional_text(header, "stderr_path"),
            results_dropped=fields.natural(header, "results_dropped"),
            value_bytes=fields.natural(header, "value_bytes") if "value_bytes" in header else 0,
        )


@dataclass(frozen=True, slots=True)
class RichResult:
    """A value or a displayed object, in each of its forms, by MIME type. A notebook shows it like the object itself.

    ``what`` is "value" or "display", ``data`` holds all forms. ``text``, ``html``, ``svg``, ``latex`` (strings),
    ``png`` (bytes) and ``json`` are shortcuts to the usual ones, None where there is no such form.
    """

    what: Literal["value", "display"]
    data: Mapping[str, object] = field(repr=False)

    def __repr__(self) -> str:
        return f"<RichResult {self.what}: {', '.join(self.data)}>"

    @property
    def text(self) -> str | None:
        """The plain text."""
        return self._text("text/plain")

    @property
    def readable(self) -> str | None:
        """The text for somebody who cannot see the object: the plain text, or what the object holds if that only names
        its class, as that of ``Markdown("...")`` does."""
        return result_texts.readable(self)

    @property
    def html(self) -> str | None:
        """HTML. It comes from the sandbox: show it only where its scripts can do no harm."""
        return self._text("text/html")

    @property
    def svg(self) -> str | None:
        """SVG. Like HTML, it may contain scripts."""
        return self._text("image/svg+xml")

    @property
    def latex(self) -> str | None:
        """LaTeX."""
        return self._text("text/latex")

    @property
    def png(self) -> bytes | None:
        """A picture: the bytes of a PNG file."""
        value = self.data.get("image/png")
        return value if isinstance(value, bytes) else None

    @property
    def json(self) -> object:
        """Decoded JSON."""
        return self.data.get("application/json")

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, object]:
        """Return forms for notebooks: pictures, texts, and HTML in a frame in which no script runs."""
        from ramet.protocol.values import result_bundles  # only notebooks need it

        return result_bundles.bundle_of_one(self, include, exclude)

    def _text(self, mime: str) -> str | None:
        value = self.data.get(mime)
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """A tool call by the code of a cell. ``arguments`` is None if they were too long to keep."""

    name: str
    arguments: dict[str, object] | None
    duration_seconds: float
    outcome: str  # "ok", or how it failed: "error", "invalid", "timeout", "refused", "unknown", "gone", "cancelled"
    message: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """How a cell ended, and everything it printed and showed.

    ``print(result)`` shows the cell's output, its value and its error; a notebook shows plots and tables, too.
    ``result.text`` is the same for a model, at most 20,000 characters long.
    """

    stdout: str
    stderr: str
    exit_code: int
    value: str | None
    results: tuple[RichResult, ...]
    interrupted: bool
    state: State
    cause: str | None
    restarted: bool
    truncated: Truncated | None
    background: str
    error: CellError | None
    duration_seconds: float
    cell_id: int
    tool_calls: tuple[ToolCallRecord, ...] = ()
    tool_calls_dropped: int = 0  # calls beyond the number that is kept
    restored: bool = False  # it began in a kept state, because the REPL had ended after the cell before

    @property
    def ok(self) -> bool:
        """Whether the cell ended by itself with exit code 0."""
        return self.exit_code == 0 and self.state == "kept" and not self.interrupted

    @property
    def text(self) -> str:
        """Output, value and error in one text of at most 20,000 characters, to be given to a model.

        The middle of a longer text is left out, marked by a line "... N characters left out ...". For a cell that
        printed and returned nothing it is "(no output)".
        """
        return result_texts.bounded_text(self)

    def to_dict(self) -> dict[str, object]:
        """Return all fields in types that JSON has: bytes become ``{"base64": "..."}``."""
        return {
            "stdout": self.stdout,
            "stderr": self.stderr,
            "exit_code": self.exit_code,
            "value": self.value,
            "results": [{"what": one.what, "data": json_forms(one)} for one in self.results],
            "interrupted": self.interrupted,
            "state": self.state,
            "cause": self.cause,
            "restarted": self.restarted,
            "restored": self.restored,
            "truncated": None if self.truncated is None else asdict(self.truncated),
            "background": self.background,
            "error": None if self.error is None else asdict(self.error),
            "duration_seconds": self.duration_seconds,
            "cell_id": self.cell_id,
            "tool_calls": [asdict(call) for call in self.tool_calls],
            "tool_calls_dropped": self.tool_calls_dropped,
        }

    def __str__(self) -> str:
        return result_texts.whole_text(self)

    def __repr__(self) -> str:
        ended = "ok" if self.ok else self.error.name if self.error is not None else f"exit code {self.exit_code}"
        shown = [ended, *([self.cause] if self.cause is not None and not self.ok else [])]
        if self.state != "kept":
            shown.append(f"state {self.state}")
        for name, text in (("stdout", self.stdout), ("stderr", self.stderr), ("value", self.value)):
            if text:
                shown.append(f"{name}={_shortened(text)}")
        if self.results:
            shown.append(f"{len(self.results)} result{'s' if len(self.results) > 1 else ''}")
        return f"<Result {', '.join(shown)}>"

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, object]:
        """Return forms for notebooks: the text, and a page with plots and tables if there are any."""
        from ramet.protocol.values import result_bundles

        return result_bundles.bundle_of_all(self, include, exclude)


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
class ClearEvent:
    """The cell called ``clear_output()``: remove what it has shown so far; with ``wait``, when the next event comes."""

    wait: bool
    type: Literal["clear"] = "clear"


@dataclass(frozen=True, slots=True)
class ExitEvent:
    """The cell ended; the last event of a stream. Its result does not repeat the streamed text."""

    code: int
    result: Result
    type: Literal["exit"] = "exit"


Event = OutputEvent | ResultEvent | ClearEvent | ExitEvent


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
class ImageInfo:
    """The newest image of a sandbox's state on disk."""

    written_ms: int | None  # when it was complete, milliseconds since the epoch; None: none was written so far
    size_bytes: int  # what it takes on disk
    last_error: str  # why the last try to write one failed; empty: it did not

    @classmethod
    def read(cls, header: Mapping[str, object]) -> ImageInfo:
        return cls(
            fields.optional_whole(header, "written_ms"),
            fields.natural(header, "size_bytes"),
            fields.text(header, "last_error"),
        )


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox's state, its use of resources, and the walls that are really around it."""

    id: str
    state: str  # "idle", "running", "lost" or "hibernated"
    pid: int  # pid of the REPL inside the sandbox
    python: str
    template: str
    waiting: int  # cells in the queue behind the running one
    limits: Limits
    usage: Mapping[str, int]
    walls: Mapping[str, object]
    owner: str  # empty if the engine has only one owner
    parent: str | None  # the sandbox it was forked from
    persistent: bool  # its state is kept when it ends
    created_ms: int  # milliseconds since the epoch, like the next two
    expires_ms: int | None  # when it ends by itself
    idle_expires_ms: int | None  # when it ends by itself if it stays unused
    image: ImageInfo | None = None  # of its state, if it is persistent or has been hibernated

    @classmethod
    def read(cls, header: Mapping[str, object]) -> SandboxInfo:
        usage = fields.mapping(header, "usage")
        image = fields.optional_mapping(header, "image")
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
            image=None if image is None else ImageInfo.read(image),
        )


def decode_form(form: str, data: bytes) -> object:
    """Decode one form of a rich result. Broken or too deeply nested JSON stays text: it is the user's data."""
    if form == "b":
        return data
    text = data.decode("utf-8", "replace")
    if form == "j":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


# The note by which the guest marks a text that it cut to a mebibyte.
_CUT_TEXT_BYTES = 1024 * 1024
_CUT_TEXT = re.compile(r"\n\.\.\. \[([1-9][0-9]{0,15}) bytes left out\]\Z")


def whole_bytes_of_cut(text: str | None) -> int:
    """Return the length of a value's text before it was cut; 0 if it was not."""
    if text is None or len(text) < _CUT_TEXT_BYTES // 4:
        return 0
    found = _CUT_TEXT.search(text, len(text) - 60)
    return 0 if found is None else _CUT_TEXT_BYTES + int(found[1])


def json_forms(shown: RichResult) -> dict[str, object]:
    """Return the forms by MIME type: text as text, JSON as JSON, bytes as {"base64": ...}."""
    return {
        mime: {"base64": base64.b64encode(form).decode("ascii")} if isinstance(form, bytes) else form
        for mime, form in shown.data.items()
    }


def _shortened(text: str) -> str:
    shown = repr(text if len(text) <= 60 else text[:60])
    return shown if len(text) <= 60 else f"{shown}... ({len(text)} characters)"
