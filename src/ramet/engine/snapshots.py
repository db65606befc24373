"""The snapshots of one engine: by id while somebody holds them, by name when they were saved as templates."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ramet.engine.sandbox import Past
from ramet.engine.seams import Frozen
from ramet.errors import LimitReached, SandboxClosed
from ramet.protocol.checks import BUILTIN_TEMPLATES, check_template_name, invalid
from ramet.protocol.specs import SandboxSpec


class Snapshot:
    """A frozen sandbox, what it was made from, and by how many it is held. The last one closes it."""

    def __init__(self, frozen: Frozen, spec: SandboxSpec, past: Past, keep_pid: bool) -> None:
        self.id = f"snp_{secrets.token_hex(16)}"
        self.frozen = frozen
        self.spec = spec
        self.past = past
        self.keep_pid = keep_pid  # sandboxes made from it have the process id of the one that was frozen
        self._holders = 1

    def __repr__(self) -> str:
        return f"<Snapshot {self.id} of {self.spec.template.name}, held by {self._holders}>"

    def hold(self) -> None:
        self._holders += 1

    async def let_go(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            await self.frozen.close()


class Snapshots:
    """Owns them all. Whoever thaws one holds it meanwhile, so that closing it does no harm."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._by_id: dict[str, Snapshot] = {}
        self._by_name: dict[str, Snapshot] = {}

    def check_room(self) -> None:
        if len(self._by_id) + len(self._by_name) >= self._at_most:
            raise LimitReached(
                f"cannot take a snapshot: this engine holds {self._at_most} already", hint="close some of them"
            )

    def add(self, snapshot: Snapshot) -> None:
        self._by_id[snapshot.id] = snapshot

    def find(self, snapshot_id: str) -> Snapshot:
        snapshot = self._by_id.get(snapshot_id)
        if snapshot is None:
            raise SandboxClosed(f"there is no snapshot {snapshot_id!r:.80}, or not any more")
        return snapshot

    def find_saved(self, name: str) -> Snapshot:
        snapshot = self._by_name.get(name)
        if snapshot is None:
            raise invalid("template", f"{name!r:.100} is unknown", "a name that a snapshot was saved as")
        return snapshot

    @asynccontextmanager
    async def held(self, snapshot: Snapshot) -> AsyncIterator[Snapshot]:
        snapshot.hold()
        try:
            yield snapshot
        finally:
            await snapshot.let_go()

    def is_saved(self, name: str) -> bool:
        return name in self._by_name

    def save(self, snapshot: Snapshot, name: str, taken: bool) -> None:
        """Keep it under a name for as long as the engine lives."""
        check_template_name(name)
        if taken or name in BUILTIN_TEMPLATES or name in self._by_name:
            raise invalid("name", f"there is a template {name!r} already", "a name that no template has")
        snapshot.hold()
        self._by_name[name] = snapshot

    async def drop(self, snapshot_id: str) -> None:
        """One that is closed already is no error."""
        snapshot = self._by_id.pop(snapshot_id, None)
        if snapshot is not None:
            await snapshot.let_go()

    async def close(self) -> None:
        held = [*self._by_id.values(), *self._by_name.values()]
        self._by_id.clear()
        self._by_name.clear()
        await asyncio.gather(*(snapshot.let_go() for snapshot in held), return_exceptions=True)
