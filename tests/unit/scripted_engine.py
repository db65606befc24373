"""An engine with a scripted machine, and what the tests of related sandboxes ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ramet.engine.cells.cell import Cell
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller
from ramet.engine.making import create, fork, merge, thaw
from ramet.engine.output.collecting import Collecting
from ramet.engine.registry import Registry
from ramet.engine.seams import Machine
from ramet.engine.settings import Settings
from ramet.protocol import guest
from ramet.protocol.calls import Outcome
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import Interpreter, Limits, SandboxSpec, TemplateSpec
from tests.unit.scripted import ScriptedBody, ScriptedMachine

SPEC = SandboxSpec(
    TemplateSpec("default", Interpreter("/usr/bin/python3", "3.12.1", (), (), None), (), builtin=True),
    Limits(2**30, 100, 1.0, 2**30),
)
QUICK = Settings(
    # Longer than a busy machine lets a test stand still: the ladder is to begin, and not to go on, while a test looks.
    interrupt_again_seconds=0.1,
    hard_interrupt_seconds=0.1,
    kill_seconds=0.1,
    end_of_control_seconds=0.01,
    waiting_cells=3,
    rich_bytes=10_000,
    automatic_points=False,
    history_disk_bytes=0,
)
SETTINGS = replace(QUICK, configure_seconds=2.0, retire_seconds=0.05, snapshots=3, waiting_cells=10)
Work = asyncio.Task[Any]
_ANY = Allowance()


class Call:
    """A cell given to a sandbox, and its outcome to come."""

    def __init__(self, sandbox: Sandbox, code: bytes = b"", timeout_seconds: float | None = None) -> None:
        self._future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        sink = Collecting(QUICK, lambda stream: None)
        self.cell = Cell("python", code, timeout_seconds, sink, self._future.set_result, self._future.set_exception)
        sandbox.queue.submit(self.cell)

    @property
    def done(self) -> bool:
        return self._future.done()

    async def outcome(self) -> Outcome:
        async with asyncio.timeout(5):
            return await self._future


class Engine:
    """A registry over a scripted machine, and what a test asks of it."""

    def __init__(self, root: Path, settings: Settings = SETTINGS) -> None:
        self.machine = ScriptedMachine(root)
        self.registry = Registry(self._start, settings)
        self.caller = Caller()

    async def _start(self) -> Machine:
        return cast(Machine, self.machine)

    async def create(self, spec: SandboxSpec, allowance: Allowance = _ANY) -> Sandbox:
        return await create.create(self.registry, spec, allowance)

    async def used(self, spec: SandboxSpec = SPEC) -> tuple[Sandbox, ScriptedBody]:
        """A sandbox that has run a cell."""
        sandbox = await self.create(spec)
        body = self.machine.bodies[-1]
        call = Call(sandbox)
        await body.next_frame()
        body.done(1)
        await call.outcome()
        return sandbox, body

    def fork(self, parent: Sandbox, count: int = 1, reseed: bool = False, caller: Caller | None = None) -> Work:
        return work(fork.fork(self.registry, parent, count, reseed, caller or self.caller))

    def merge(self, parent: Sandbox, winner: Sandbox, caller: Caller | None = None) -> Work:
        return work(merge.merge(self.registry, parent, winner, caller or self.caller))


def work(awaitable: Awaitable[Any]) -> Work:
    return asyncio.ensure_future(bounded(awaitable))


async def bounded(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(5):
        return await awaitable


async def run(sandbox: Sandbox, body: ScriptedBody, code: bytes = b"") -> int:
    """Run a cell to its end; gives its id."""
    call = Call(sandbox, code)
    return await finish(call, body)


async def finish(call: Call, body: ScriptedBody) -> int:
    frame = await body.next_frame()
    assert frame.kind == guest.RUN
    body.done(int(str(frame.header["id"])))
    return (await call.outcome()).cell_id


async def take(engine: Engine, sandbox: Sandbox) -> Any:
    return await work(thaw.snapshot(engine.registry, sandbox, engine.caller))


async def pair(engine: Engine) -> tuple[Sandbox, ScriptedBody, Sandbox, ScriptedBody]:
    parent, parent_body = await engine.used()
    winner = (await engine.fork(parent)).sandboxes[0]
    return parent, parent_body, winner, engine.machine.bodies[-1]
