"""Sandboxes in the engine's list."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.protocol import fields
from ramet.protocol.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SandboxRow:
    """A living sandbox in a list. Times are milliseconds since the epoch."""

    id: str
    owner: str
    state: str
    template: str
    created_ms: int
    expires_ms: int | None
    idle_expires_ms: int | None
    parent: str | None
    waiting: int
    memory_limit_bytes: int
    persistent: bool
    key: str | None = None  # the name of the key it belongs to; a server shows it to operators

    @classmethod
    def read(cls, header: Mapping[str, object]) -> SandboxRow:
        return cls(
            id=fields.text(header, "id"),
            owner=fields.text(header, "owner"),
            state=fields.text(header, "state"),
            template=fields.text(header, "template"),
            created_ms=fields.whole(header, "created_ms"),
            expires_ms=fields.optional_whole(header, "expires_ms"),
            idle_expires_ms=fields.optional_whole(header, "idle_expires_ms"),
            parent=fields.optional_text(header, "parent"),
            waiting=fields.natural(header, "waiting"),
            memory_limit_bytes=fields.natural(header, "memory_limit_bytes"),
            persistent=fields.flag(header, "persistent"),
            key=fields.optional_text(header, "key"),
        )
