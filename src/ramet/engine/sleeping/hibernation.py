"""Hibernation: a sandbox goes to disk, gives up its memory and processes, and comes back with the next call.

It keeps its id, queue, results, rules and secrets: only the body goes. Wake-up is a bring-up like any other.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller
from ramet.engine.history.memory import resident_bytes
from ramet.engine.history.past import Past
from ramet.engine.images.disk_quota import check_bytes
from ramet.engine.images.records import describe, rebuild
from ramet.engine.making import snapshots
from ramet.engine.making.bring_up import bring_up
from ramet.engine.making.carried_state import CarriedState, RetiredBody
from ramet.engine.making.lifetimes import now_ms
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.sources import SnapshotSource
from ramet.engine.making.workshop import Workshop
from ramet.engine.seams import Body, Machine
from ramet.engine.sleeping.records import ASLEEP_IN_IT, NOT_KEPT, SandboxRecord
from ramet.errors import LimitReached, RametError, SandboxLost
from ramet.isolation.files.cache_folders import space_image_name
from ramet.protocol.lazy_dataclasses import dataclass

_FILES_SECONDS = 30.0  # that calls which use its files may take until it is frozen
_KEPT_BYTES_AT_MOST = 128 * 2**20  # of a state that stays in memory, as a point, after the wake-up

Retire = Callable[[RetiredBody], Awaitable[None]]  # closes it in the background
Keep = Callable[[Sandbox], Awaitable[None]]  # opens its journal if it has none


def hibernate(workshop: Workshop, sandbox: Sandbox, caller: Caller, keep: Keep, retire: Retire) -> Awaitable[int]:
    """Put a sandbox to sleep in a turn of its queue, which is in there when this returns. Awaited: bytes on disk.

    Raises SandboxClosed or LimitReached; awaited, ForkFailed, SandboxLost, or RametError where its image could not be
    written. Then it stays awake.
    """
    if sandbox.sleep.asleep and not sandbox.queue.busy:
        return _nothing()
    turns = caller.queue(sandbox, needs_repl=True)
    # A caller that leaves, or a sandbox that closes, does not wait for gigabytes to be written.
    return turns.carry_out(lambda: _hibernate(workshop, sandbox, keep, retire))


async def _nothing() -> int:
    return 0


async def _hibernate(workshop: Workshop, sandbox: Sandbox, keep: Keep, retire: Retire) -> int:
    machine = await workshop.machine()
    if not machine.keeps_images:
        raise RametError(
            "the sandbox cannot hibernate: this engine has no folder for images",
            hint="unset RAMET_IMAGES, and see that ~/.cache/ramet is a folder that only you can write to",
            details={"cause": "no images"},
        )
    # First of all: an image that is written is removed with its journal, also if this ends half-way.
    await keep(sandbox)
    with sandbox.sleep.fall():
        if not await sandbox.files_unused(_FILES_SECONDS):
            raise LimitReached(f"sandbox {sandbox.id} cannot hibernate: its files are in use", hint="try again later")
        await sandbox.exposures.settled()
        await check_room(workshop, sandbox)
        with _running_again_if_it_fails(sandbox):
            snapshot = await snapshots.freeze_for_good(machine, sandbox)
        try:
            with _running_again_if_it_fails(sandbox):
                size = await write(machine, sandbox, snapshot)
            # Nothing is awaited from here until it is asleep: it has a body, or an image and no body.
            sandbox.sleep.wake = _Waking(workshop, sandbox, snapshot.carried, snapshot.keep_pid, retire).wake
            forget_states(sandbox.past)
            closing = retire(sandbox.fall_asleep())
        finally:
            await snapshot.let_go()
    # When this returns, its memory is free. Shielded: a caller that leaves must not stop the close half-way.
    await asyncio.shield(closing)
    return size


async def check_room(workshop: Workshop, sandbox: Sandbox) -> None:
    """Raise LimitReached if the images of its owner take all the disk that they may.

    Before a freeze: between that and `write` nothing is awaited, so that states are written in their order.
    """
    allowance = workshop.quotas.allowance_of(sandbox.owner)
    await check_bytes(await workshop.machine(), sandbox.owner, allowance, sandbox.on_disk.size_bytes)


async def write(machine: Machine, sandbox: Sandbox, snapshot: Snapshot, changes: int | None = None) -> int:
    """Write an image of a sandbox under its id. Raises RametError, and then the image it had before is still there.

    ``changes``: the number of the last change that the snapshot has, if others may have come since.
    """
    about = {**describe(snapshot), "sandbox": SandboxRecord.of(sandbox, changes).header()}
    try:
        size = await machine.save_image(snapshot.frozen, space_image_name(sandbox.owner, sandbox.id), about)
    except RametError as error:
        sandbox.on_disk.last_error = str(error)
        raise
    sandbox.on_disk.written(now_ms(), size)
    if sandbox.keeping is not None:
        await sandbox.keeping.sync()
    return size


@contextmanager
def _running_again_if_it_fails(sandbox: Sandbox) -> Iterator[None]:
    try:
        yield
    except BaseException:  # also of a caller who leaves: a cancelled freeze has stopped it
        sandbox.body.signal(signal.SIGCONT)
        raise


def forget_states(past: Past) -> None:
    """Let go of the states that take memory. Their steps stay."""
    for step in past.kept():
        if isinstance(step.state, Snapshot):
            past.drop(step, NOT_KEPT)
    if (last := past.last) is not None and last.state is None:
        last.unkept = ASLEEP_IN_IT


@dataclass(frozen=True, slots=True)
class _Waking:
    """How a sandbox that sleeps gets a body again. ``carried``: of the moment in which it was frozen."""

    workshop: Workshop
    sandbox: Sandbox
    carried: CarriedState
    keep_pid: bool
    retire: Retire

    async def wake(self) -> None:
        """Raises LimitReached where its owner has no room for it now, or RametError. Then it sleeps on."""
        sandbox, workshop = self.sandbox, self.workshop
        spec = sandbox.spec
        with workshop.quotas.reserve_again(sandbox.owner, spec.limits.memory_bytes):
            machine = await workshop.machine()
            found = await machine.load_image(space_image_name(sandbox.owner, sandbox.id))
            if found is None:
                raise SandboxLost(
                    f"sandbox {sandbox.id} cannot be woken: its image is not on disk any more",
                    hint="ramet images lists what is there",
                )
            loaded = await rebuild(*found, sandbox.owner)
            loaded.carried = self.carried
            try:
                async with AsyncExitStack() as undo:
                    needs_network = sandbox.network is not None
                    source = SnapshotSource(machine, loaded, spec.limits, spec.mounts, needs_network)
                    await bring_up(source, [self], undo)
                    undo.pop_all()
                self._keep(loaded)
            finally:
                await loaded.let_go()

    def take(self, body: Body) -> Sandbox:
        self.sandbox.check_open()  # it would never close this body
        self.retire(self.sandbox.become(body, self.sandbox.spec, self.carried, woken=True))
        return self.sandbox

    async def give_up(self) -> None:
        """It failed, before or after ``take``: a body that it has got is given up again."""
        if self.sandbox.repl.alive and self.sandbox.sleep.asleep:
            self.retire(self.sandbox.fall_asleep())

    def _keep(self, loaded: Snapshot) -> None:
        """Its state is the one after its last step, and costs no freeze: what the next cell does can be undone."""
        past, points = self.sandbox.past, self.sandbox.points
        step = past.last
        if points is None or step is None or past.wanted == 0 or step.exact:
            return
        points.moved()
        if past.wanted or _resident(loaded) <= _KEPT_BYTES_AT_MOST:
            loaded.hold()
            loaded.frozen.give_way()
            past.keep(step, loaded)


def _resident(snapshot: Snapshot) -> int:
    try:
        return resident_bytes(snapshot.frozen.shadow)
    except OSError:
        return _KEPT_BYTES_AT_MOST + 1
