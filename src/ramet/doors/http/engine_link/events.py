"""Events about sandboxes that the engine sends by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ramet.errors import ProtocolError
from ramet.protocol import fields
from ramet.protocol.values.listing import SandboxRow


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    """A sandbox began or ended; or the engine is up ("all", with all its sandboxes) or gone ("down")."""

    kind: Literal["all", "begun", "ended", "down"]
    sandboxes: tuple[SandboxRow, ...] = ()  # for "all" and "begun"
    id: str = ""
    owner: str = ""
    cause: str = ""
    message: str = ""
    snapshots: tuple[tuple[str, str], ...] = ()  # id and owner; for "all"
    spaces: tuple[tuple[str, str], ...] = ()


def read_event(header: Mapping[str, object]) -> SandboxEvent:
    event = fields.text(header, "event")
    if event == "all":
        return SandboxEvent(
            "all",
            sandboxes=tuple(SandboxRow.read(row) for row in _objects(header, "sandboxes")),
            snapshots=_owned(header, "snapshots"),
            spaces=_owned(header, "spaces"),
        )
    if event == "begun":
        row = SandboxRow.read(fields.mapping(header, "sandbox"))
        return SandboxEvent("begun", sandboxes=(row,), id=row.id, owner=row.owner)
    if event != "ended":
        raise ProtocolError(f"news of an unknown event {event!r:.40}")
    return SandboxEvent(
        "ended",
        id=fields.text(header, "id"),
        owner=fields.text(header, "owner"),
        cause=fields.text(header, "cause"),
        message=fields.text(header, "message"),
    )


def _owned(header: Mapping[str, object], name: str) -> tuple[tuple[str, str], ...]:
    return tuple((fields.text(one, "id"), fields.text(one, "owner")) for one in _objects(header, name))


def _objects(header: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    values = fields.array(header, name)
    if not all(isinstance(value, dict) for value in values):
        raise ProtocolError(f"field {name!r} holds something that is not an object")
    return [value for value in values if isinstance(value, dict)]
