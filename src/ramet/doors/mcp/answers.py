"""The answers of the tools: text for the model, images, and for some tools a structure for programs.

Results of cells have no structure: clients that see one show nothing else, and drop the images of plots. What a program
may need about a cell is in the answer's ``_meta`` under ``ramet``.

Classes here have no docstrings, because pydantic would put them into the schemas that models read.
"""

from __future__ import annotations

from typing import Any, Literal

from mcp import types
from pydantic import BaseModel

from ramet import Diff, FileInfo, Point, Result, SandboxInfo
from ramet.integrations.results import Shown

LISTED = 500  # entries of each kind in a structure


class MadeSandbox(BaseModel):
    sandbox: str


class ListedSandbox(BaseModel):
    id: str
    default: bool
    state: str
    parent: str | None
    memory_bytes: int

    @classmethod
    def of(cls, info: SandboxInfo, default_id: str | None) -> ListedSandbox:
        return cls(
            id=info.id,
            default=info.id == default_id,
            state=info.state,
            parent=info.parent,
            memory_bytes=info.usage.get("memory_bytes", 0),
        )


class ListedSandboxes(BaseModel):
    sandboxes: list[ListedSandbox]
    snapshots: list[str]


class ForkAnswer(BaseModel):
    sandbox: str
    children: list[str]


class TakenSnapshot(BaseModel):
    sandbox: str
    snapshot: str


class ListedPoint(BaseModel):
    id: str
    cell: int
    code: str
    outcome: str
    kept: bool
    lost: bool
    note: str

    @classmethod
    def of(cls, point: Point) -> ListedPoint:
        return cls(
            id=point.id,
            cell=point.cell_id,
            code=_sendable(point.code),
            outcome=point.outcome,
            kept=point.kept,
            lost=point.lost,
            note=point.note,
        )


class ListedHistory(BaseModel):
    sandbox: str
    points: list[ListedPoint]
    note: str


class UndoneCells(BaseModel):
    sandbox: str
    point: str
    undone_cells: list[int]
    tool_calls: list[str]
    connections: list[str]


class ChangedFile(BaseModel):
    path: str
    change: Literal["added", "removed", "modified"]
    type: str


class ChangedName(BaseModel):
    name: str
    change: Literal["added", "removed", "changed"]
    before: str | None
    after: str | None


class Differences(BaseModel):
    sandbox: str
    other: str
    is_empty: bool
    files: list[ChangedFile]
    names: list[ChangedName]
    left_out: int

    @classmethod
    def of(cls, diff: Diff, sandbox: str, other: str) -> Differences:
        files = [ChangedFile(path=_sendable(one.path), change=one.change, type=one.type) for one in diff.files[:LISTED]]
        names = [
            ChangedName(
                name=_sendable(one.name),
                change=one.change,
                before=None if one.before is None else _sendable(str(one.before)),
                after=None if one.after is None else _sendable(str(one.after)),
            )
            for one in diff.names[:LISTED]
        ]
        left_out = len(diff.files) + len(diff.names) - len(files) - len(names)
        return cls(sandbox=sandbox, other=other, is_empty=diff.is_empty, files=files, names=names, left_out=left_out)


class ListedFile(BaseModel):
    name: str
    type: str
    size_bytes: int


class ListedFiles(BaseModel):
    path: str
    entries: list[ListedFile]
    left_out: int

    @classmethod
    def of(cls, path: str, entries: list[FileInfo]) -> ListedFiles:
        listed = [
            ListedFile(name=_sendable(one.name), type=one.type, size_bytes=one.size_bytes) for one in entries[:LISTED]
        ]
        return cls(path=_sendable(path), entries=listed, left_out=len(entries) - len(listed))


def answer(shown: Shown, structure: BaseModel | None = None) -> types.CallToolResult:
    """The answer in the SDK's form: text and images for the model, the structure for programs."""
    images = [types.ImageContent(data=one.base64, mime_type=one.media_type) for one in shown.images]
    meta = None if shown.result is None else {"ramet": _facts(shown.result)}
    return types.CallToolResult(
        content=[types.TextContent(text=_sendable(shown.text)), *images],
        structured_content=None if structure is None else structure.model_dump(mode="json"),
        is_error=shown.failed,
        _meta=meta,
    )


def _facts(result: Result) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "ok": result.ok,
        "interrupted": result.interrupted,
        "state": result.state,
        "cause": result.cause,
        "error": None if result.error is None else result.error.name,
        "duration_seconds": result.duration_seconds,
    }


def _sendable(text: str) -> str:
    """The text without surrogates, which JSON in UTF-8 cannot carry. File names can contain them."""
    return text.encode("utf-8", "replace").decode("utf-8")
