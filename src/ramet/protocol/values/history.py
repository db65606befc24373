"""The past of a sandbox as its users see it: points, and what a step back could not undo."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, overload

from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.argument_errors import kind_of, must
from ramet.protocol.lazy_dataclasses import dataclass

CODE_CHARACTERS = 200  # kept of the code of a cell
UNDO_AT_MOST = 1000
POINT_ID = re.compile(r"p[0-9]{1,12}")

PointKind = Literal["start", "cell", "restore", "restart", "take"]
_KINDS: Mapping[str, PointKind] = {"cell": "cell", "restore": "restore", "restart": "restart", "take": "take"}
Taking = Literal["on", "suspended", "off"]
KeptIn = Literal["memory", "disk", "template", ""]
_PLACES: Mapping[str, KeptIn] = {"memory": "memory", "disk": "disk", "template": "template"}


@dataclass(frozen=True, slots=True)
class Point:
    """A step of a sandbox's past, and the state of memory, threads and files after it.

    ``kept``: whether ``rewind`` and ``fork(at=...)`` can go there; if not, ``note`` says why. ``lost``: the work of
    this cell is not part of the sandbox's state, because its Python died and was restored to an earlier point.
    """

    id: str
    kind: PointKind  # "restart": its Python died and was started again, empty
    cell_id: int  # as in its Result; 0 for a step that is no cell
    code: str  # its first 200 characters; of a "take" what was taken
    outcome: str  # "ok", "error", "interrupted" or "died"; empty for a step that is no cell
    kept: bool
    lost: bool
    changed_bytes: int | None  # memory written since the point before, roughly; None: not known
    time_ms: int  # when it ended, in milliseconds since the epoch
    note: str
    pause_seconds: float | None  # that the sandbox stood still for it; None: it did not
    kept_in: KeptIn  # where the state is; "template": it takes no room, the template makes it anew
    kept_bytes: int  # that it takes there, as far as it was measured

    @classmethod
    def read(cls, header: Mapping[str, object]) -> Point:
        return cls(
            id=fields.text(header, "id"),
            kind=_KINDS.get(fields.text(header, "kind"), "start"),
            cell_id=fields.whole(header, "cell_id"),
            code=fields.text(header, "code"),
            outcome=fields.text(header, "outcome"),
            kept=fields.flag(header, "kept"),
            lost=fields.flag(header, "lost"),
            changed_bytes=fields.optional_whole(header, "changed_bytes"),
            time_ms=fields.whole(header, "time_ms"),
            note=fields.text(header, "note"),
            pause_seconds=fields.optional_number(header, "pause_seconds"),
            kept_in=_PLACES.get(fields.text(header, "kept_in"), ""),
            kept_bytes=fields.natural(header, "kept_bytes"),
        )


@dataclass(frozen=True, slots=True)
class History:
    """The points of a sandbox, the oldest first: ``for point in history``, ``history[-1]``, ``len(history)``.

    ``taking`` says whether points are taken: "on", "suspended" for the time being, or "off"; ``note`` says why.
    """

    points: tuple[Point, ...]
    taking: Taking
    note: str
    memory_bytes: int  # that the kept states take, as far as it was measured
    disk_bytes: int  # the same on disk

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Point, ...]: ...
    def __getitem__(self, index: int | slice) -> Point | tuple[Point, ...]:
        return self.points[index]

    def __str__(self) -> str:
        lines = [_line(point) for point in self.points]
        return "\n".join([*lines, *([self.note] if self.note else [])])

    @classmethod
    def read(cls, header: Mapping[str, object]) -> History:
        taking = fields.text(header, "taking")
        return cls(
            points=tuple(_point(value) for value in fields.array(header, "points")),
            taking="on" if taking == "on" else "off" if taking == "off" else "suspended",
            note=fields.text(header, "note"),
            memory_bytes=fields.natural(header, "memory_bytes"),
            disk_bytes=fields.natural(header, "disk_bytes"),
        )


@dataclass(frozen=True, slots=True)
class MissingCell:
    """A cell that had begun when its engine ended, after the last state that is on disk."""

    cell_id: int
    code: str  # its first 200 characters


@dataclass(frozen=True, slots=True)
class Undone:
    """A step back: the point that the sandbox is at now, and what happened since that could not be undone.

    ``writable_mounts`` are host folders that code could write to, whether it did or not.
    """

    point: Point
    cell_ids: tuple[int, ...]  # of cells whose work is undone
    tool_calls: tuple[str, ...]  # names of tools that those cells called
    connections: tuple[str, ...]  # "host:port" of connections that were made
    writable_mounts: tuple[str, ...]  # paths in the sandbox

    def __str__(self) -> str:
        undone = f"undone: {_cells(self.cell_ids)}" if self.cell_ids else "what was done since, without a cell"
        parts = [f"back at {_place(self.point)}; {undone}"]
        for what, names in (
            ("tool calls", self.tool_calls),
            ("connections", self.connections),
            ("writes to host folders", self.writable_mounts),
        ):
            if names:
                parts.append(f"not undone: {what} ({', '.join(names)})")
        return "\n".join(parts)

    @classmethod
    def read(cls, header: Mapping[str, object]) -> Undone:
        cell_ids = fields.array(header, "cell_ids")
        return cls(
            point=Point.read(fields.mapping(header, "point")),
            cell_ids=tuple(cell for cell in cell_ids if isinstance(cell, int)),
            tool_calls=fields.texts(header, "tool_calls"),
            connections=fields.texts(header, "connections"),
            writable_mounts=fields.texts(header, "writable_mounts"),
        )


def point_id(point: object, argument: str = "point") -> str:
    """The id of a point that is given as itself or by its id. Raises InvalidArgument."""
    found = point.id if isinstance(point, Point) else point
    if not isinstance(found, str):
        raise must(argument, "be a Point or the id of one", kind_of(found))
    if not POINT_ID.fullmatch(found):
        raise must(argument, 'be a Point or the id of one, such as "p3"', found)
    return found


def _point(value: object) -> Point:
    if not isinstance(value, dict):
        raise ProtocolError("a point is an object")
    return Point.read(value)


def _line(point: Point) -> str:
    code = " ".join(point.code.split())
    if point.kind != "cell":
        code = f"({point.kind}) {code}".rstrip()
    shown = code if code.isprintable() else ascii(code)
    state = "kept on disk" if point.kept_in == "disk" else "kept" if point.kept else point.note or "not kept"
    outcome = f" {point.outcome}" if point.outcome else ""
    return f"{point.id}{outcome}{', lost' if point.lost else ''}, {state}: {shown[:80]}"


def _place(point: Point) -> str:
    return f"{point.id}, after cell {point.cell_id}" if point.kind == "cell" else point.id


def _cells(cell_ids: tuple[int, ...]) -> str:
    if len(cell_ids) == 1:
        return f"cell {cell_ids[0]}"
    return f"cells {', '.join(map(str, cell_ids[:-1]))} and {cell_ids[-1]}"
