"""A kept state as the source of a bring-up, and a sandbox that goes back as its destination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from ramet.engine.cells.sandbox import Sandbox, first_carried
from ramet.engine.history.past import AskedOnTop, State, Step, TemplateState
from ramet.engine.images.points import DiskState
from ramet.engine.making.bring_up import finish_all
from ramet.engine.making.carried_state import RetiredBody
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.network.prepared import open_proxy_sockets, prepare
from ramet.engine.seams import Body, Frozen, Machine
from ramet.errors import ForkFailed, SandboxLost
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import SandboxSpec


@dataclass(frozen=True, slots=True)
class PointSource:
    """A kept state, which the caller holds until the sandboxes are there. ``spec``: of one in that state."""

    machine: Machine
    state: State
    spec: SandboxSpec
    needs_network: bool
    count: int = 1
    reseed: bool = False
    asked: AskedOnTop | None = None  # on top of the state

    async def bodies(self) -> Sequence[Body]:
        made: list[Body] = []
        async with AsyncExitStack() as undo:
            undo.push_async_callback(_close_all, made)
            if isinstance(self.state, DiskState):
                async with self.state.thawable() as frozen:
                    await finish_all(*(self._body(made, frozen) for _ in range(self.count)))
            else:
                frozen_now = self.state.frozen if isinstance(self.state, Snapshot) else None
                await finish_all(*(self._body(made, frozen_now) for _ in range(self.count)))
            undo.pop_all()
        return made

    async def _body(self, made: list[Body], frozen: Frozen | None) -> None:
        spec = self.spec
        if frozen is not None:
            body = await self.machine.thaw(frozen, spec.limits, spec.mounts)
        else:
            ahead = prepare if self.needs_network else None
            body = await self.machine.create(spec.template, spec.limits, spec.mounts, ahead)
        made.append(body)
        if self.needs_network and body.prepared is None:
            await open_proxy_sockets(body, "the sandbox did not go back")

    async def settle(self, sandboxes: Sequence[Sandbox]) -> None:
        try:
            await finish_all(*(self._settle(sandbox) for sandbox in sandboxes))
        except SandboxLost as error:
            raise ForkFailed(f"a sandbox ended before it could take a cell: {error.message}") from error

    async def _settle(self, sandbox: Sandbox) -> None:
        if not isinstance(self.state, Snapshot | DiskState):
            await sandbox.configure()
        elif self.reseed or self.state.keep_pid:
            await sandbox.repl.thawed(self.reseed, stir=self.state.keep_pid)
        if self.asked is not None:
            await sandbox.adjust(self.asked.environment, self.asked.cwd)


@dataclass(frozen=True, slots=True)
class Returning:
    """A sandbox as the destination of a body that is an earlier state of its own.

    ``check`` raises if the sandbox is closing: it would never close this body.
    """

    sandbox: Sandbox
    state: State
    spec: SandboxSpec  # of the sandbox in that state
    check: Callable[[], None]
    retire: Callable[[RetiredBody], None]

    def take(self, body: Body) -> Sandbox:
        self.check()
        if isinstance(self.state, Snapshot | DiskState):
            self.retire(self.sandbox.become(body, self.spec, self.state.carried))
        else:
            fresh = body.prepared is None or not first_carried(body).variables
            self.retire(self.sandbox.become(body, self.spec, first_carried(body), fresh))
        return self.sandbox

    async def give_up(self) -> None:
        """The sandbox keeps the body it has: its own, or the new one, which a cell can still revive."""


def spec_at(step: Step, own: SandboxSpec) -> SandboxSpec:
    """The spec of a sandbox that goes back to the state of a step, or of a new one like it in that state."""
    if step.asked is not None:
        then = step.asked.spec
    else:
        assert isinstance(step.state, Snapshot | DiskState | TemplateState)
        then = step.state.spec
    return replace(own, template=then.template, environment=then.environment, cwd=then.cwd)


async def _close_all(bodies: list[Body]) -> None:
    await finish_all(*(body.close() for body in bodies))
