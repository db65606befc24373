"""What sandboxes are brought up from: a template, a snapshot, a sandbox that is forked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.making.bring_up import finish_all
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.network.prepared import open_proxy_sockets, prepare
from ramet.engine.seams import Body, Forked, Machine
from ramet.errors import ForkFailed, SandboxLost
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import Limits, MountSpec, SandboxSpec


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A booted template. If a sandbox thawed from it waits in the pool, that one is handed over at once."""

    machine: Machine
    spec: SandboxSpec

    async def bodies(self) -> Sequence[Body]:
        spec = self.spec
        ahead = prepare if spec.network is not None else None
        return (await self.machine.create(spec.template, spec.limits, spec.mounts, ahead),)

    async def settle(self, sandboxes: Sequence[Sandbox]) -> None:
        for sandbox in sandboxes:
            await sandbox.configure()


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A snapshot, which the caller holds until the sandbox is there. ``needs_network``: it is to have a network."""

    machine: Machine
    snapshot: Snapshot
    limits: Limits
    mounts: Sequence[MountSpec]
    needs_network: bool = False
    adjusted: tuple[Mapping[str, str], str | None] | None = None  # environment and folder that are asked for on top

    async def bodies(self) -> Sequence[Body]:
        body = await self.machine.thaw(self.snapshot.frozen, self.limits, self.mounts)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(body.close)
            if self.needs_network:
                await open_proxy_sockets(body, "the snapshot was not thawed")
            undo.pop_all()
        return (body,)

    async def settle(self, sandboxes: Sequence[Sandbox]) -> None:
        for sandbox in sandboxes:
            if self.snapshot.keep_pid:
                await sandbox.repl.thawed(reseed=False, stir=True)
            if self.adjusted is not None:
                await sandbox.adjust(*self.adjusted)


@dataclass(slots=True)
class ForkSource:
    """A running sandbox, in a turn of its own. ``on_resumed`` is called as soon as it runs again."""

    machine: Machine
    parent: Body
    count: int
    keep_pid: bool
    reseed: bool
    on_resumed: Callable[[], None]
    forked: Forked | None = None  # set by bodies()

    async def bodies(self) -> Sequence[Body]:
        self.forked = await self.machine.fork(self.parent, self.count, self.keep_pid, self.on_resumed)
        return self.forked.bodies

    async def settle(self, sandboxes: Sequence[Sandbox]) -> None:
        if not self.reseed and not self.keep_pid:
            return
        try:
            await finish_all(*(sandbox.repl.thawed(self.reseed, stir=self.keep_pid) for sandbox in sandboxes))
        except SandboxLost as error:
            raise ForkFailed(f"a child ended before it could take a cell: {error.message}") from error
