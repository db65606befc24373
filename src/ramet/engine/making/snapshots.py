"""The snapshots of one engine: by id until they are closed, by name when they were saved as templates.

A snapshot belongs to the owner of the sandbox that was frozen, and so does the name it is saved as.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.making.carried_state import CarriedState
from ramet.engine.seams import Frozen, Machine
from ramet.engine.settings import Settings
from ramet.errors import ForkFailed, LimitReached, SandboxClosed
from ramet.isolation.named_locks import NamedLocks
from ramet.protocol.argument_errors import must
from ramet.protocol.checks import BUILTIN_TEMPLATES, check_template_name
from ramet.protocol.values.specs import SandboxSpec

_FOR_GOOD_ATTEMPTS = 3  # a thread that does not stop in time may do so the next time


class Snapshot:
    """A frozen sandbox, its spec, and how many hold it. The last holder to let go closes it."""

    on_disk = False

    def __init__(self, frozen: Frozen, spec: SandboxSpec, carried: CarriedState, keep_pid: bool) -> None:
        self.id = f"snp_{secrets.token_hex(16)}"
        self.frozen = frozen
        self.spec = spec
        self.carried = carried
        self.keep_pid = keep_pid  # sandboxes made from it have the process id of the one that was frozen
        self.image_id = ""  # of the image on disk that it was read from
        self._holders = 1

    def __repr__(self) -> str:
        return f"<Snapshot {self.id} of {self.spec.template.name}, held by {self._holders}>"

    @property
    def owner(self) -> str:
        return self.spec.owner

    @property
    def holders(self) -> int:
        return self._holders

    def hold(self) -> None:
        self._holders += 1

    async def let_go(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            await self.frozen.close()


async def freeze_for_good(machine: Machine, sandbox: Sandbox) -> Snapshot:
    """Freeze a sandbox that ends or goes to sleep now. Raises ForkFailed when several attempts have failed.

    Its REPL stays stopped, also when this is cancelled: what it did after the freeze would be lost, or be done again by
    the sandbox that comes back. SIGCONT lets it go on.
    """
    for _ in range(_FOR_GOOD_ATTEMPTS - 1):
        with suppress(ForkFailed):
            return await freeze(machine, sandbox, stay_stopped=True)
    return await freeze(machine, sandbox, stay_stopped=True)


async def freeze(machine: Machine, sandbox: Sandbox, stay_stopped: bool = False) -> Snapshot:
    """Freeze a sandbox, in a turn of it. The caller holds the snapshot once. Raises ForkFailed, LimitReached."""
    keep_pid = await settle(sandbox)
    frozen = await machine.freeze(sandbox.body, keep_pid, stay_stopped)
    return Snapshot(frozen, sandbox.spec, sandbox.carried, keep_pid)


async def settle(sandbox: Sandbox) -> bool:
    """Make a sandbox ready to be copied. Returns whether its copies must keep its process id."""
    repl = sandbox.repl
    if repl.asked and not repl.asked_loops:
        raise ForkFailed(
            f"cannot fork sandbox {sandbox.id}: it is still listing its names for a diff that was cancelled",
            hint="run a cell with a timeout first",
        )
    await repl.settle()
    # Before 3.12 asyncio forgets a running loop when the process id changes.
    return sandbox.spec.template.python_version < (3, 12) and await repl.runs_loops()


class Snapshots:
    """Owns the snapshots of one engine. A thaw holds its snapshot, so closing that meanwhile does no harm."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._by_id: dict[str, Snapshot] = {}
        self._by_name: dict[tuple[str, str], Snapshot] = {}  # owner, name
        self._coming: Counter[str] = Counter()  # being taken, by owner
        self._loading = NamedLocks()

    def __len__(self) -> int:
        return len(self._by_id) + len(self._by_name)

    def rows(self, owner: str | None) -> list[dict[str, object]]:
        """Those that have ids, for lists."""
        found = self._by_id.values()
        return [{"id": one.id, "owner": one.owner} for one in found if owner in (None, one.owner)]

    def check_room(self, owner: str) -> None:
        at_most = self._settings.snapshots
        if owner:
            held = [*self._by_id.values(), *self._by_name.values()]
            of_owner = sum(snapshot.owner == owner for snapshot in held) + self._coming[owner]
            if of_owner >= self._settings.snapshots_of_an_owner:
                raise LimitReached(f"cannot take a snapshot: you hold {of_owner} already", hint="close some of them")
        if len(self) + self._coming.total() >= at_most:
            raise LimitReached(
                f"cannot take a snapshot: this engine holds {at_most} already", hint="close some of them"
            )

    @contextmanager
    def room(self, owner: str) -> Iterator[None]:
        """Inside, a snapshot is being taken and counts as one: many callers at once get no more than the limit."""
        self.check_room(owner)
        self._coming[owner] += 1
        try:
            yield
        finally:
            self._coming -= Counter([owner])

    def add(self, snapshot: Snapshot) -> None:
        self._by_id[snapshot.id] = snapshot

    def find(self, snapshot_id: str, owner: str | None = None) -> Snapshot:
        snapshot = self._by_id.get(snapshot_id)
        if snapshot is None or owner not in (None, snapshot.owner):
            raise SandboxClosed(f"there is no snapshot {snapshot_id!r:.80}; it may have been closed")
        return snapshot

    def find_saved(self, name: str, owner: str | None = None) -> Snapshot | None:
        """One that was saved in this engine, or loaded from disk before."""
        return self._by_name.get((owner or "", name))

    @asynccontextmanager
    async def held(self, snapshot: Snapshot) -> AsyncIterator[Snapshot]:
        snapshot.hold()
        try:
            yield snapshot
        finally:
            await snapshot.let_go()

    def names(self, owner: str) -> set[str]:
        return {name for of, name in self._by_name if of == owner}

    def is_saved(self, name: str, owner: str) -> bool:
        return (owner, name) in self._by_name

    def save(self, snapshot: Snapshot, name: str, taken: bool) -> None:
        """Keep it under a name for as long as the engine lives."""
        check_template_name(name)
        if taken or name in BUILTIN_TEMPLATES or self.is_saved(name, snapshot.owner):
            raise must("name", "be one that no template has yet", name)
        snapshot.hold()
        self._by_name[snapshot.owner, name] = snapshot

    async def forget_name(self, name: str, owner: str) -> None:
        """Another snapshot has got the name, on disk: it is read from there when it is first asked for."""
        before = self._by_name.pop((owner, name), None)
        if before is not None:
            await before.let_go()

    def loading(self, name: str, owner: str) -> AbstractAsyncContextManager[None]:
        """Inside, no other caller reads the snapshot of this name from disk."""
        return self._loading.held((owner, name))

    def add_loaded(self, snapshot: Snapshot, name: str) -> Snapshot:
        """Keep one that was read from disk under its name."""
        self._by_name[snapshot.owner, name] = snapshot
        return snapshot

    async def drop(self, snapshot_id: str, owner: str | None = None) -> None:
        """Close a snapshot; ignores one that is closed already or belongs to another owner."""
        snapshot = self._by_id.get(snapshot_id)
        if snapshot is not None and owner in (None, snapshot.owner):
            del self._by_id[snapshot_id]
            await snapshot.let_go()

    async def close(self) -> None:
        held = [*self._by_id.values(), *self._by_name.values()]
        self._by_id.clear()
        self._by_name.clear()
        await asyncio.gather(*(snapshot.let_go() for snapshot in held), return_exceptions=True)
