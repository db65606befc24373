"""All sandboxes of one engine, by id: who finds them, and how they end. How they begin is in ``making``."""

from __future__ import annotations

import asyncio
import re
import sys
import traceback
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial

from ramet.engine.cells.descriptions import row
from ramet.engine.cells.sandbox import Sandbox, merged_message
from ramet.engine.cells.turns import Caller
from ramet.engine.history.keeper import HistoryKeeper
from ramet.engine.idle_memory import IdleMemory
from ramet.engine.images import kept_states
from ramet.engine.making import snapshots
from ramet.engine.making.carried_state import RetiredBody
from ramet.engine.making.kept_state import KeptStates
from ramet.engine.making.lifetimes import Cause, Tombstone, Tombstones, now_ms
from ramet.engine.making.quotas import Quotas
from ramet.engine.making.snapshots import Snapshot, Snapshots
from ramet.engine.making.template_names import TemplateNames
from ramet.engine.making.workshop import StartMachine, Workshop
from ramet.engine.settings import Settings
from ramet.engine.sleeping.records import SandboxRecord
from ramet.engine.sleeping.sleepers import FLUSH_SECONDS, Sleepers
from ramet.engine.subscriptions import Subscriptions
from ramet.errors import EngineClosed, RametError, SandboxClosed
from ramet.isolation.files.walks import Walks
from ramet.isolation.named_locks import NamedLocks
from ramet.protocol.values.specs import SandboxSpec

_FREEZE_SECONDS = 1.0  # that an engine which ends waits for last freezes
_SPACE = re.compile(r"sbx_[0-9a-f]{32}")


class Registry:
    """Owns every sandbox and snapshot, and the workshop that makes them.

    Where an ``owner`` is given, sandboxes of other owners are not found; None finds all.
    """

    def __init__(self, start_machine: StartMachine, settings: Settings) -> None:
        self.settings = settings
        self.executor = ThreadPoolExecutor(settings.file_threads, thread_name_prefix="ramet-files")
        self.walks = Walks()
        self._sandboxes: dict[str, Sandbox] = {}
        self._leaving: set[Sandbox] = set()  # not found any more, and not closed yet
        self._idle_memory = IdleMemory(settings.trim_seconds, lambda: not self._sandboxes and not self._leaving)
        self.tombstones = Tombstones(settings.ended_sandboxes)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.snapshots = Snapshots(settings)
        self.kept = KeptStates(settings)
        self.subscriptions = Subscriptions()
        quotas = Quotas(
            lambda owner: _memory_limits((one for one in self._sandboxes.values() if not one.sleep.asleep), owner),
            lambda owner: _memory_limits(self._leaving, owner),
        )
        self.templates = TemplateNames(quotas, self.snapshots)
        self.workshop = Workshop(start_machine, settings, quotas, self.walks)
        self.history = HistoryKeeper(self.workshop, settings, self._background)
        self.sleepers = Sleepers(self.workshop, self.history.freeze, self._perform, settings.server)
        self._endings: dict[str, asyncio.Future[None]] = {}  # of those that are being closed, and perhaps written
        self._reopening = NamedLocks()

    def __repr__(self) -> str:
        return f"<Registry {len(self._sandboxes)} sandboxes>"

    def find(self, sandbox_id: str, owner: str | None = None) -> Sandbox:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None and (owner is None or owner == sandbox.spec.owner):
            return sandbox
        ended = self.tombstones.find(sandbox_id, owner)
        if ended is not None:
            raise ended.error()
        raise SandboxClosed(f"there is no sandbox {sandbox_id!r:.80}; it may have ended")

    def present(self, sandbox_id: str, owner: str | None) -> Sandbox | None:
        sandbox = self._sandboxes.get(sandbox_id)
        return sandbox if sandbox is not None and owner in (None, sandbox.owner) else None

    def all_of(self, owner: str | None) -> list[Sandbox]:
        return [sandbox for sandbox in self._sandboxes.values() if owner in (None, sandbox.owner)]

    def add(self, sandboxes: Sequence[Sandbox]) -> None:
        """From now on they are found by their ids, and closed with the engine. All are added, or none.

        Raises EngineClosed, or LimitReached if a persistent one could not be kept.
        """
        if self._closed:  # ``close`` has closed those it knew; it would never close these
            raise EngineClosed("the engine was closed while the sandbox was made")
        for sandbox in sandboxes:
            self.check_keeping(sandbox.spec)  # again: others were made meanwhile
        for sandbox in sandboxes:
            self._sandboxes[sandbox.id] = sandbox
            self.history.watch(sandbox)
            sandbox.clock.sleeps(
                sandbox.spec.hibernate_after_seconds,
                sandbox.spec.on_idle == "hibernate",
                partial(getattr, sandbox.sleep, "asleep"),
                partial(self._on_sleepy, sandbox),
            )
            sandbox.clock.start(partial(self._on_due, sandbox))
            self.subscriptions.begun(row(sandbox))

    def check_keeping(self, spec: SandboxSpec) -> None:
        """Raise LimitReached if a sandbox is to be persistent and its state could not be kept when it ends."""
        # The program that an embedded engine belongs to may fill its own disk; those states are not in memory.
        if spec.persistent and (spec.owner or self.settings.server):
            live = [sandbox for sandbox in self._sandboxes.values() if sandbox.spec.persistent]
            of_owner = sum(sandbox.owner == spec.owner for sandbox in live)
            self.kept.check_room(spec.owner, len(live), of_owner)

    # How they end

    async def close_sandbox(self, sandbox_id: str, owner: str | None = None) -> None:
        """Close a sandbox, and wait for it. Ignores one that is closed already or belongs to another owner."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None and owner in (None, sandbox.owner):
            await self._end(sandbox, "closed", f"sandbox {sandbox.id} was closed", keep=True)
        elif (dormant := self.sleepers.find_dormant(sandbox_id, owner)) is not None:
            await self.sleepers.close_dormant(dormant)

    def close_soon(self, sandbox_id: str, owner: str | None = None) -> None:
        """Close a sandbox without waiting: it is not found any more when this returns."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None and owner in (None, sandbox.owner):
            message = f"sandbox {sandbox.id} was closed"
            self._background(self._finish(sandbox, self._take_leave(sandbox, "closed", message), message, keep=True))
        elif (dormant := self.sleepers.find_dormant(sandbox_id, owner)) is not None:
            self._background(self.sleepers.close_dormant(dormant))

    async def let_go(self, some_id: str) -> None:
        """Close a sandbox or a snapshot whose owner has lost its handle. What is persistent is kept."""
        await self.close_sandbox(some_id)
        await self.snapshots.drop(some_id)

    async def forget(self, some_id: str) -> None:
        """Close a sandbox or a snapshot whose id no client has learnt, and keep nothing of it."""
        sandbox = self._sandboxes.get(some_id)
        if sandbox is not None:
            await self._end(sandbox, "closed", f"sandbox {sandbox.id} was closed", keep=False)
        await self.snapshots.drop(some_id)

    def merged(self, winner: Sandbox, into: Sandbox) -> None:
        """The winner's id is no more; calls that use it get an error that says where its state went."""
        if self._sandboxes.pop(winner.id, None) is not None:
            self._bury(winner, "merged", merged_message(winner.id, into.id))
            self.sleepers.stop(winner)
            self._background(self._leave_disk(winner))

    def _on_sleepy(self, sandbox: Sandbox) -> None:
        self._background(self.sleepers.hibernate_if_idle(sandbox))

    def _on_due(self, sandbox: Sandbox, cause: Cause, why: str) -> None:
        self._background(self._end(sandbox, cause, f"sandbox {sandbox.id} ended: {why}", keep=True))

    async def _end(self, sandbox: Sandbox, cause: Cause, message: str, keep: bool) -> None:
        if self._sandboxes.get(sandbox.id) is sandbox:  # else another call ends it already
            await self._finish(sandbox, self._take_leave(sandbox, cause, message), message, keep)

    def _take_leave(self, sandbox: Sandbox, cause: Cause, message: str) -> Tombstone:
        """Before the first await of an end: from here on no call finds it, and no other call ends it too."""
        del self._sandboxes[sandbox.id]
        self._leaving.add(sandbox)
        return self._bury(sandbox, cause, message)

    async def _finish(self, sandbox: Sandbox, tombstone: Tombstone, message: str, keep: bool) -> None:
        with self._ending(sandbox.id):
            await self._close_and_keep(sandbox, tombstone, message, keep and sandbox.spec.persistent)

    async def _leave_disk(self, winner: Sandbox) -> None:
        """One that has slept, or was persistent, has an image, which would be found as a sandbox of its own."""
        with self._ending(winner.id):
            await self.sleepers.ended(winner, keep=False)

    @contextmanager
    def _ending(self, sandbox_id: str) -> Iterator[None]:
        over = self._endings[sandbox_id] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            if self._endings.get(sandbox_id) is over:
                del self._endings[sandbox_id]
            over.set_result(None)

    async def gone(self, sandbox_id: str) -> None:
        """Wait until a sandbox that is being closed is closed, and written if it is to be kept."""
        while (over := self._endings.get(sandbox_id)) is not None:
            await asyncio.shield(over)

    async def _wait_for_endings(self) -> None:
        """For a moment: what is cancelled below loses what its sandbox did since its last checkpoint."""
        if self._endings:
            # Not long for those that are still frozen: their last turn may be behind a cell that does not end.
            await asyncio.wait(list(self._endings.values()), timeout=_FREEZE_SECONDS)
        frozen = self._endings.keys() - {sandbox.id for sandbox in self._leaving}
        if writing := [self._endings[each] for each in frozen]:
            await asyncio.wait(writing, timeout=FLUSH_SECONDS)

    def reopening(self, sandbox_id: str) -> AbstractAsyncContextManager[None]:
        """Inside, no other caller has the sandbox of this id come from disk."""
        return self._reopening.held(sandbox_id)

    async def _close_and_keep(self, sandbox: Sandbox, tombstone: Tombstone, message: str, keep: bool) -> None:
        kept = False
        self.sleepers.stop(sandbox)
        try:
            asleep = sandbox.sleep.asleep  # its image is its last state
            if keep and not asleep:
                try:
                    await self.kept.keep(sandbox.id, sandbox.owner, self._freeze(sandbox, message))
                    kept = True
                except Exception as error:
                    tombstone.unkept = str(error) or type(error).__name__
                    if not isinstance(error, RametError | TimeoutError):
                        traceback.print_exc(file=sys.stderr)
            record = SandboxRecord.of(sandbox)
            await sandbox.close(message)
        finally:
            self._leaving.discard(sandbox)
            self._idle_memory.closed_one()
        if kept:  # last: writing takes seconds, and memory and quota of the sandbox are free by now
            with suppress(RametError):  # it stays in memory
                await self._write_kept(sandbox.id, sandbox.owner, record.header(), sandbox.on_disk.size_bytes)
        # Where it could not be frozen, its last checkpoint is what there is.
        await self.sleepers.ended(sandbox, keep)

    async def write_unwritten(self, space_id: str, owner: str) -> None:
        """Write the last state of a sandbox that could not be written when it ended. Raises RametError.

        An earlier state that is on disk is not to take its place.
        """
        space = self.kept.find(space_id, owner)
        if space is None or space.unwritten is None:
            return
        try:
            await self._write_kept(space_id, owner, space.unwritten, space.replaced_bytes)
        except RametError as error:
            where = "this server" if self.settings.server else "this program"
            raise RametError(
                f"the last state of sandbox {space_id} is in the memory of {where} only: {error.message}",
                hint="make room on the disk of the images, and resume it again; `ramet images` lists them",
            ) from error

    async def _write_kept(self, space_id: str, owner: str, record: Mapping[str, object], replaced_bytes: int) -> None:
        """Also to disk. Raises RametError; that costs nothing but the way through the next engine."""
        space = self.kept.find(space_id, owner)
        if space is None:
            return  # it was discarded meanwhile
        snapshot = space.snapshot.result()
        async with self.snapshots.held(snapshot):
            space.unwritten, space.replaced_bytes = record, replaced_bytes
            written = await kept_states.write(self.workshop, space_id, snapshot, record, replaced_bytes)
            space.unwritten = None
            # Tools are not on disk: a state that has some stays in memory, where a resume finds them.
            alone = not (owner or self.settings.server) and snapshot.carried.tools is None
            if written and alone and self.kept.find(space_id, owner) is space:
                await self.kept.discard(space_id, owner)  # their number is not bounded: see `check_keeping`
                return
        if self.kept.find(space_id, owner) is None:  # discarded while it was written
            await kept_states.discard(self.workshop, space_id, owner)

    async def kept_snapshot(self, space_id: str, owner: str | None) -> Snapshot | None:
        """The state that a persistent sandbox left, in memory or on disk. None: nothing is kept."""
        if self.present(space_id, owner) is not None:
            return None  # it is alive: what is on disk is not what it is
        space = self.kept.find(space_id, owner)
        # A call that names no owner means all of them. A program's own engine has one, whose states are on disk alone.
        whose = "" if owner is None and not self.settings.server else owner
        if space is None and whose is not None and _SPACE.fullmatch(space_id):
            loaded = await kept_states.load(self.workshop, space_id, whose)
            if loaded is not None:
                space = await self.kept.add_loaded(space_id, loaded)
        # Shielded: the freeze goes on for others that resume it, also if this caller is cancelled.
        return None if space is None else await asyncio.shield(space.snapshot)

    async def discard_kept(self, space_id: str, owner: str | None) -> None:
        """Remove what is kept of a sandbox. A persistent one that is alive ends, and its last state is not written.

        Raises RametError if another engine has it.
        """
        alive = self.present(space_id, owner)
        if alive is not None and alive.spec.persistent:
            await self._end(alive, "closed", f"sandbox {space_id} was discarded", keep=False)
        await self.kept.discard(space_id, owner)
        if owner is not None and _SPACE.fullmatch(space_id) and self.present(space_id, owner) is None:
            await self.gone(space_id)  # one that is being written just now
            await self.sleepers.discard(space_id, owner)

    async def _freeze(self, sandbox: Sandbox, why: str) -> Snapshot:
        """Freeze a sandbox in its last turn."""
        sandbox.wind_down(why)
        machine = await self.workshop.machine()
        async with asyncio.timeout(self.settings.keep_seconds):
            async with Caller().queue(sandbox, needs_repl=True):
                return await snapshots.freeze_for_good(machine, sandbox)

    def _bury(self, sandbox: Sandbox, cause: Cause, message: str) -> Tombstone:
        tombstone = Tombstone(sandbox.owner, cause, message, now_ms())
        self.tombstones.add(sandbox.id, tombstone)
        self.subscriptions.ended(sandbox.id, sandbox.owner, cause, message)
        return tombstone

    def retire(self, retired: RetiredBody) -> None:
        """Close a body that was replaced, in the background."""
        self._background(retired.close())

    def _background(self, work: Coroutine[object, object, None]) -> None:
        self._perform(work)

    def _perform(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)
        return task

    # The whole

    async def facts(self) -> dict[str, object]:
        machine = await self.workshop.machine()
        return dict(machine.facts())

    async def close(self) -> None:
        """In the order of use: sandboxes before snapshots, both before the machine."""
        self._closed = True
        await asyncio.gather(self.sleepers.flush(), self._wait_for_endings())
        self.workshop.forbid()
        self._idle_memory.stop()
        await self.workshop.packages.close()
        sandboxes = [*self._sandboxes.values(), *self._leaving]
        self._sandboxes.clear()
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes), return_exceptions=True)
        for task in self._tasks:
            task.cancel()  # what is left of it goes with the machine
        await self.sleepers.close(sandboxes)
        await self.snapshots.close()
        await self.kept.close()
        await self.workshop.close()
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.walks.close()


def _memory_limits(sandboxes: Iterable[Sandbox], owner: str | None) -> list[int]:
    """Of an owner's sandboxes, or of all, with the output that the engine keeps in their files: that is memory too."""
    return [
        sandbox.spec.limits.memory_bytes + sandbox.spilled_bytes
        for sandbox in sandboxes
        if owner is None or sandbox.owner == owner
    ]
