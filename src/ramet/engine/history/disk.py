"""The part of all histories that is on disk: states that memory has no room for are written there, one at a time."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from time import perf_counter
from typing import Protocol
from weakref import WeakKeyDictionary

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.history.past import Step
from ramet.engine.images import points
from ramet.engine.images.points import DiskState
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.workshop import Workshop
from ramet.engine.settings import Settings
from ramet.errors import RametError
from ramet.protocol.lazy_dataclasses import dataclass

_WAITING = 16  # states that wait to be written: until then each holds its memory
_WAITING_BYTES = 256 * 2**20
_RETRY_SECONDS = 30.0  # after a write that failed: the disk may be full
NO_ROOM_ON_DISK = "the histories of all sandboxes take as much of the disk as they may"
TOO_MANY_ON_DISK = "the sandbox has as many old states on disk as it may have"
BEHIND = "too many other states were waiting to be written to disk"


class HasPast(Protocol):
    """A sandbox with a past, as far as it is needed here."""

    sandbox: Sandbox
    used_at: float
    automatic: bool


@dataclass(slots=True, eq=False)
class _Write:
    holder: HasPast
    snapshot: Snapshot
    again: bool = False  # it was given up once, perhaps for an image that a caller waited for


class PastOnDisk:
    """Writes states to disk and keeps them within their budget. Sandboxes own the states, as they own those in memory.

    ``holders``: all sandboxes that have a past.
    """

    def __init__(
        self,
        workshop: Workshop,
        settings: Settings,
        background: Callable[[Coroutine[object, object, None]], None],
        holders: Callable[[], Iterable[HasPast]],
    ) -> None:
        self._workshop = workshop
        self._settings = settings
        self._background = background
        self._holders = holders
        self._waiting: list[_Write] = []
        self._current: _Write | None = None
        self._working = False  # one writer: `give_up` stops the write that is under way, whichever it is
        self._written = 0
        # Why the last write of a sandbox failed, and until when no other is tried: the disk may be full, or its memory
        # cannot be written at all.
        self._failed: WeakKeyDictionary[HasPast, tuple[str, float]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<PastOnDisk {self._written} written, {len(self._waiting)} waiting>"

    # Writing

    def refusal(self, holder: HasPast) -> str | None:
        """Why nothing of a sandbox is written just now, empty where nothing ever is; None: it is."""
        machine = self._workshop.machine_if_started()
        if machine is None or not machine.keeps_images or not self._settings.history_disk_bytes:
            return ""
        why, retry_at = self._failed.get(holder, ("", 0.0))
        if asyncio.get_running_loop().time() < retry_at:
            return f"it could not be written to disk: {why}"
        return None

    def take(self, holder: HasPast, step: Step, why: str) -> bool:
        """Have the state of a step written that memory has no room for. False: it is to be dropped, and it was said
        why. ``why``: it would be dropped if it could not be written.
        """
        snapshot = step.state
        if not isinstance(snapshot, Snapshot):
            return False
        refusal = self.refusal(holder)
        known = any(each.snapshot is snapshot for each in (*self._waiting, self._current) if each is not None)
        if refusal is None and not known and self._is_behind(step):
            refusal = BEHIND
        if refusal is not None:
            holder.sandbox.past.drop(step, f"{why}; {refusal}" if refusal else why)
            return False
        step.leaving = why
        if not known:
            self._waiting.append(_Write(holder, snapshot))
        if not self._working:
            self._working = True
            self._background(self._work())
        return True

    def _is_behind(self, step: Step) -> bool:
        if len(self._waiting) >= _WAITING:
            return True
        waiting_bytes = sum(each.memory_bytes for _, each in self._steps() if each.leaving)
        return waiting_bytes > 0 and waiting_bytes + step.memory_bytes > _WAITING_BYTES

    def give_up(self, snapshot: Snapshot, why: str) -> None:
        """Drop a state that is being written, or waits for it: its memory is in the way."""
        self._waiting = [each for each in self._waiting if each.snapshot is not snapshot]
        machine = self._workshop.machine_if_started()
        if self._current is not None and self._current.snapshot is snapshot and machine is not None:
            machine.stop_writing_point()
        for holder, step in self._steps():
            if step.state is snapshot:
                holder.sandbox.past.drop(step, why)

    async def _work(self) -> None:
        try:
            while self._waiting:
                self._current = self._waiting.pop(0)
                began = perf_counter()
                await self._write(self._current)
                await self._fit()
                if self._current.holder.automatic:
                    await asyncio.sleep(self._settings.point_write_rest * (perf_counter() - began))
        finally:
            self._working, self._current = False, None

    async def _write(self, write: _Write) -> None:
        snapshot = write.snapshot
        if not any(step.leaving and step.state is snapshot for _, step in self._steps()):
            return  # it is not wanted any more
        snapshot.hold()  # its steps may be dropped during the write
        state: DiskState | None = None
        try:
            state = await self._write_now(write)
            # Looked for anew: during the write steps were dropped, and forks at a point have got copies of them.
            for holder, step in self._steps():
                if step.state is snapshot:
                    state.hold()
                    holder.sandbox.past.exchange(step, state)
        except Exception as error:
            self._on_failure(write, error)
        finally:
            await snapshot.let_go()
            if state is not None:
                await state.let_go()

    async def _write_now(self, write: _Write) -> DiskState:
        machine = await self._workshop.machine()
        sandbox, most = write.holder.sandbox, self._settings.history_disk_bytes
        state = await points.write(machine, sandbox, write.snapshot, self._base(write), most)
        self._written += 1
        return state

    def _base(self, write: _Write) -> str | None:
        """The image of the same sandbox that is nearest in time: most of its pages are the same."""
        steps = write.holder.sandbox.past.kept()
        number = next((step.number for step in steps if step.state is write.snapshot), 0)
        on_disk = [step for step in steps if isinstance(step.state, DiskState)]
        if not on_disk:
            return None
        nearest = min(on_disk, key=lambda step: abs(step.number - number))
        assert isinstance(nearest.state, DiskState)
        return nearest.state.name

    def _on_failure(self, write: _Write, error: Exception) -> None:
        if not isinstance(error, RametError):
            traceback.print_exc(file=sys.stderr)
        if not write.again:
            write.again = True
            self._waiting.append(write)
            return
        why = error.message if isinstance(error, RametError) else str(error) or type(error).__name__
        self._failed[write.holder] = why, asyncio.get_running_loop().time() + _RETRY_SECONDS
        for holder, step in self._steps():
            if step.state is write.snapshot and step.leaving:
                holder.sandbox.past.drop(step, f"{step.leaving}; it could not be written to disk: {why}")

    # Removing

    async def _fit(self) -> None:
        """Drop states until all are within their bounds: the owner that holds most gives up first, and of its
        sandboxes those not used for longest, the oldest state first.
        """
        machine = await self._workshop.machine()
        sizes = await machine.point_sizes()
        kept = sorted(self._on_disk(), key=lambda one: (one[0].used_at, one[1].number))
        of_one: Counter[HasPast] = Counter(holder for holder, _, _ in kept)
        for holder, step, _ in kept:
            if of_one[holder] > self._settings.points_on_disk_of_a_sandbox:
                of_one[holder] -= 1
                holder.sandbox.past.drop(step, TOO_MANY_ON_DISK)
        kept = [one for one in kept if one[1].state is one[2]]
        for _, _, state in kept:
            state.disk_bytes = sizes.get(state.name, state.disk_bytes)
        held = Counter(state for _, _, state in kept)
        while kept:
            total_bytes = sum(state.disk_bytes for state in held)
            if total_bytes <= self._settings.history_disk_bytes and len(held) <= self._settings.points_on_disk:
                return
            weights: Counter[str] = Counter()
            for holder, _, state in kept:
                weights[holder.sandbox.owner] += state.disk_bytes
            greatest = max(weights, key=lambda owner: weights[owner])
            given_up = next(one for one in kept if one[0].sandbox.owner == greatest)
            kept.remove(given_up)
            holder, step, state = given_up
            holder.sandbox.past.drop(step, NO_ROOM_ON_DISK)
            held[state] -= 1
            if not held[state]:
                del held[state]

    def _steps(self) -> Iterator[tuple[HasPast, Step]]:
        for holder in list(self._holders()):
            for step in holder.sandbox.past.kept():
                yield holder, step

    def _on_disk(self) -> list[tuple[HasPast, Step, DiskState]]:
        return [(holder, step, step.state) for holder, step in self._steps() if isinstance(step.state, DiskState)]

    def facts(self, owner: str | None) -> dict[str, int]:
        states = {state for holder, _, state in self._on_disk() if owner in (None, holder.sandbox.owner)}
        return {"points_on_disk": len(states), "disk_bytes": sum(state.disk_bytes for state in states)}
