"""Sandboxes with many living ancestors: they go through an image, and share nothing with an ancestor afterwards.

Each copy of a process adds to lists that the kernel walks whenever one of its ancestors' pages is shared again. So a
fork of generation 100 takes several times as long as one of generation 1, if all between them live. A process that was
poured from an image has no ancestors. But it shares no memory with its relatives either: so this is done only for a
sandbox that was forked and has no children any more, and for a bounded amount of memory in all.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from time import perf_counter

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Turn
from ramet.engine.history.memory import machine_memory_bytes, resident_bytes
from ramet.engine.images import points
from ramet.engine.images.points import DiskState
from ramet.engine.making.carried_state import RetiredBody
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.workshop import Workshop
from ramet.engine.network.prepared import open_proxy_sockets
from ramet.engine.seams import Machine
from ramet.engine.settings import Settings
from ramet.errors import ForkFailed, RametError

_REST = 3  # times as long as one took, until the next
_RETRY_SECONDS = 60.0  # after one that could not be done: it may have a child process, or a connection
_LOOK_SECONDS = 0.005  # between looks whether a call waits for the sandbox
_MEMORY_SHARE = 0.05  # of the machine's, that sandboxes which were made flat may take


class Flattener:
    """Gives idle sandboxes a memory of their own, one at a time. Never fails a sandbox: it stays as it is."""

    def __init__(
        self,
        workshop: Workshop,
        settings: Settings,
        background: Callable[[Coroutine[object, object, None]], None],
        retire: Callable[[RetiredBody], object],
        has_children: Callable[[Sandbox], bool],
    ) -> None:
        self._workshop = workshop
        self._settings = settings
        self._background = background
        self._retire = retire
        self._has_children = has_children
        self._timers: dict[Sandbox, asyncio.TimerHandle] = {}
        self._waiting: list[Sandbox] = []
        self._working = False  # one at a time: each holds a second copy of its memory
        self._retry_at: dict[Sandbox, float] = {}
        self._flat_bytes: dict[Sandbox, int] = {}  # of those that share nothing any more
        self._bytes_at_most = int(machine_memory_bytes() * _MEMORY_SHARE)

    def consider(self, sandbox: Sandbox) -> None:
        """Do it when the sandbox has been idle for a moment from now on."""
        loop = asyncio.get_running_loop()
        if (timer := self._timers.pop(sandbox, None)) is not None:
            timer.cancel()
        wait = max(self._settings.flatten_idle_seconds, self._retry_at.get(sandbox, 0.0) - loop.time())
        self._timers[sandbox] = loop.call_later(wait, self._ask, sandbox)

    def forget(self, sandbox: Sandbox) -> None:
        if (timer := self._timers.pop(sandbox, None)) is not None:
            timer.cancel()
        self._retry_at.pop(sandbox, None)
        self._flat_bytes.pop(sandbox, None)
        if sandbox in self._waiting:
            self._waiting.remove(sandbox)

    def _ask(self, sandbox: Sandbox) -> None:
        self._timers.pop(sandbox, None)
        self._waiting.append(sandbox)
        if not self._working:
            self._working = True
            self._background(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                sandbox = self._waiting.pop()  # the newest: it is the one that is likely to be forked next
                began = perf_counter()
                try:
                    await self._flatten(sandbox)
                except RametError:
                    self._retry_at[sandbox] = asyncio.get_running_loop().time() + _RETRY_SECONDS
                await asyncio.sleep(_REST * (perf_counter() - began))
        finally:
            self._working = False

    async def _flatten(self, sandbox: Sandbox) -> None:
        """Raises RametError; then the sandbox is as before."""
        machine = self._workshop.machine_if_started()
        if machine is None or not machine.keeps_images or not self._wanted(sandbox):
            return
        # First while it runs: what is written then need not be written while it stands still.
        first = await self._freeze(machine, sandbox)
        try:
            memory_bytes = _resident(first)
            if sum(self._flat_bytes.values()) + memory_bytes > self._bytes_at_most:
                raise ForkFailed("sandboxes that share no memory take as much as they may")
            base = await self._write(machine, sandbox, first, None)
        finally:
            await first.let_go()
        try:
            old = sandbox.body
            if self._wanted(sandbox):  # asked again: it may have been used or forked during the write
                await self._exchange(machine, sandbox, base)
            if sandbox.body is not old:
                self._flat_bytes[sandbox] = memory_bytes
        finally:
            await base.let_go()

    def _wanted(self, sandbox: Sandbox) -> bool:
        return (
            not sandbox.in_use
            and sandbox.repl.alive
            and sandbox.sleep.is_awake
            and sandbox.body.ancestors > self._settings.ancestors
            and not self._has_children(sandbox)
        )

    async def _freeze(self, machine: Machine, sandbox: Sandbox, stay_stopped: bool = False) -> Snapshot:
        """In a turn of its own. ``stay_stopped``: the caller has one, and sends SIGCONT if the body is not replaced."""
        turn = None if stay_stopped else sandbox.queue.turn(needs_repl=False, quiet=True)
        try:
            if sandbox.repl.asked:
                raise ForkFailed("its Python has not answered an earlier question")
            await sandbox.repl.settle()
            # With its process id: the copy takes its place, and no other has it.
            frozen = await machine.freeze(sandbox.body, True, stay_stopped)
        finally:
            if turn is not None:
                turn.release()
        snapshot = Snapshot(frozen, sandbox.spec, sandbox.carried, keep_pid=True)
        if not frozen.faithful:
            await snapshot.let_go()
            raise ForkFailed("a copy would not have all that it has")
        return snapshot

    async def _write(self, machine: Machine, sandbox: Sandbox, snapshot: Snapshot, base: DiskState | None) -> DiskState:
        name, most = None if base is None else base.name, self._settings.history_disk_bytes
        return await points.write(machine, sandbox, snapshot, name, most)

    async def _exchange(self, machine: Machine, sandbox: Sandbox, base: DiskState) -> None:
        """In a turn: what came since the first image, the process anew, and the sandbox goes on as that."""
        turn = sandbox.queue.turn(needs_repl=False, quiet=True)
        try:
            # Calls that take no turn wait meanwhile: what they wrote to the old body would be lost.
            with sandbox.sleep.fall():
                if await sandbox.files_unused(0.0):
                    await self._undisturbed(machine, sandbox, turn, self._pour(machine, sandbox, base, turn))
        finally:
            turn.release()

    async def _undisturbed(
        self, machine: Machine, sandbox: Sandbox, turn: Turn, work: Coroutine[object, object, None]
    ) -> None:
        """Do it unless a call waits for the sandbox: then it is given up at once."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=_LOOK_SECONDS)
                if not task.done() and (sandbox.queue.waiting or turn.closing.done()):
                    machine.stop_writing_point()
                    task.cancel()
                    await asyncio.wait([task])
        finally:
            if not task.done():  # this task is cancelled: the engine closes
                task.cancel()
        with suppress(asyncio.CancelledError):
            task.result()

    async def _pour(self, machine: Machine, sandbox: Sandbox, base: DiskState, turn: Turn) -> None:
        old = sandbox.body
        async with AsyncExitStack() as always:
            try:
                # Its threads stand from the freeze on: what they did after it would be lost, or be done twice.
                snapshot = await self._freeze(machine, sandbox, stay_stopped=True)
                always.push_async_callback(snapshot.let_go)
                last = await self._write(machine, sandbox, snapshot, base)
                always.push_async_callback(last.let_go)
                await self._become(machine, sandbox, last, snapshot, turn)
            finally:
                if sandbox.body is old:
                    old.signal(signal.SIGCONT)
        if sandbox.points is not None:
            sandbox.points.moved()

    async def _become(
        self, machine: Machine, sandbox: Sandbox, state: DiskState, snapshot: Snapshot, turn: Turn
    ) -> None:
        spec = sandbox.spec
        async with state.thawable() as frozen, AsyncExitStack() as undo:
            body = await machine.thaw(frozen, spec.limits, spec.mounts)
            undo.push_async_callback(body.close)
            if sandbox.network is not None:
                await open_proxy_sockets(body, "the sandbox stays as it is")
            turn.check()
            # Nothing is awaited from here on: the sandbox has the one body, or the other.
            self._retire(sandbox.become(body, spec, snapshot.carried, woken=True))
            undo.pop_all()


def _resident(snapshot: Snapshot) -> int:
    try:
        return resident_bytes(snapshot.frozen.shadow)
    except OSError as error:
        raise ForkFailed("its frozen process has ended") from error
