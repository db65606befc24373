"""Take: one sandbox brings chosen names and files of another into itself, all or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import TypeVar

from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller, Turns
from ramet.engine.files.tree import SandboxTree
from ramet.engine.history.bring_back import bring_back
from ramet.engine.history.past import Step
from ramet.engine.making.quotas import Reservation
from ramet.engine.making.snapshots import Snapshot, freeze
from ramet.engine.making.thaw import thaw_hidden
from ramet.engine.merging.names import UNDEFINED, NamePlan, plan_names
from ramet.engine.registry import Registry
from ramet.engine.seams import FilesToTake
from ramet.errors import (
    NO_ROOM_ERRNOS,
    FileForbidden,
    FileNotFound,
    LimitReached,
    MergeConflict,
    NameUnknown,
    RametError,
    SandboxLost,
    ValueUnsupported,
    file_error,
)
from ramet.protocol import guest
from ramet.protocol.argument_errors import wrong_argument
from ramet.protocol.values.takes import Taken, TakeSpec
from ramet.protocol.values.value_bounds import VALUE_BYTES_AT_MOST

_PARTS_AT_MOST = VALUE_BYTES_AT_MOST // (1 << 20) + 10  # the guest fills each with a mebibyte, but for the last
_LISTED_AT_MOST = 200  # conflicts that an error lists
_SHOWN_AT_MOST = 10  # of them in its message
T = TypeVar("T")

_FULL = "remove files there, take less, or give it a larger disk_mib"


def take(registry: Registry, receiver: Sandbox, giver: Sandbox, asked: TakeSpec, caller: Caller) -> Awaitable[Taken]:
    """Bring names and files of the giver into the receiver. The turns are in both queues when this returns.

    Raises InvalidArgument, SandboxClosed; awaited, MergeConflict and what stands in the way.
    """
    if receiver is giver:
        raise wrong_argument("source", "source must be another sandbox, got the sandbox itself")
    turns = caller.queue(receiver, giver, needs_repl=True)
    return turns.carry_out(lambda: _Taking(registry, receiver, giver, asked).run())


def take_from_snapshot(
    registry: Registry, receiver: Sandbox, found: Snapshot, asked: TakeSpec, caller: Caller
) -> Awaitable[Taken]:
    """Bring names and files of a snapshot into a sandbox. The turn is in the queue, and quota reserved, when this
    returns.
    """
    with ExitStack() as undo:
        quotas = registry.workshop.quotas
        reservation = undo.enter_context(quotas.reserve_hidden(receiver.owner, found.spec.limits.memory_bytes))
        turns = caller.queue(receiver, needs_repl=True)
        undo.pop_all()
    found.hold()
    return _from_snapshot(registry, receiver, found, asked, turns, reservation)


async def _from_snapshot(
    registry: Registry,
    receiver: Sandbox,
    found: Snapshot,
    asked: TakeSpec,
    turns: Turns,
    reservation: Reservation,
) -> Taken:
    async def work() -> Taken:
        async with AsyncExitStack() as closing:
            giver = await thaw_hidden(registry, found, closing)
            return await _Taking(registry, receiver, giver, asked).run()

    try:
        with reservation:
            return await turns.carry_out(work)
    finally:
        await found.let_go()


class _Taking:
    """One take, in a turn of both sandboxes.

    Everything is looked at first. Then the receiver is frozen, and values and files are laid aside in it. Only when
    all of them are there is anything replaced, and that is not cancelled any more. A receiver whose REPL ends on the
    way, or that is left in between, goes back to the frozen state.
    """

    def __init__(self, registry: Registry, receiver: Sandbox, giver: Sandbox, asked: TakeSpec) -> None:
        self._registry = registry
        self._receiver = receiver
        self._giver = giver
        self._asked = asked
        self._value_bytes = 0
        self._committing = False

    async def run(self) -> Taken:
        asked = self._asked
        names = await plan_names(self._registry, self._receiver, self._giver, asked.names, asked.prefer)
        files = await self._plan_files()
        self._check(names, files)
        first = await self._pack(names.names) if names.names else None
        if first is None and (files is None or not files.plan.changes):
            return Taken()
        try:
            before = await freeze(await self._registry.workshop.machine(), self._receiver)
        except BaseException:
            self._giver.repl.drop_value()
            raise
        try:
            return await self._carry_out(names.names, first, files, before)
        finally:
            await before.let_go()

    # Choosing

    async def _plan_files(self) -> FilesToTake | None:
        wanted = self._asked.files
        if not wanted:
            return None
        machine = await self._registry.workshop.machine()
        paths = None if wanted is True else wanted
        receiver, giver = self._receiver, self._giver
        return await machine.plan_files(receiver.body, giver.body, paths, self._asked.prefer, receiver.owner)

    def _check(self, names: NamePlan, files: FilesToTake | None) -> None:
        if files is not None and files.plan.missing:
            raise FileNotFound(
                f"cannot take {_some(files.plan.missing)}: sandbox {self._giver.id} has no such file",
                details={"path": files.plan.missing[0], "errno": 2},
            )
        if files is not None and files.plan.refused:
            raise FileForbidden(
                f"cannot take {_some(files.plan.refused)}: only files, folders, links and fifos can be taken",
                details={"path": files.plan.refused[0], "errno": 1},
            )
        paths = files.plan.conflicts if files is not None else ()
        if names.conflicts or paths:
            told = [f"names {_some(names.conflicts)}"] if names.conflicts else []
            told += [f"files {_some(paths)}"] if paths else []
            raise MergeConflict(
                f"nothing was taken: both sandboxes have changed {' and '.join(told)}",
                hint='prefer="theirs" takes these too, prefer="ours" leaves them; or ask for others only',
                details={
                    "names": list(names.conflicts[:_LISTED_AT_MOST]),
                    "files": list(paths[:_LISTED_AT_MOST]),
                    "count": len(names.conflicts) + len(paths),
                },
            )

    async def _pack(self, names: tuple[str, ...]) -> guest.ValueTold:
        """The first part of the values, which are all packed by then."""
        try:
            told = await self._giver.repl.value(guest.pack_values(names))
        except BaseException:
            self._giver.repl.drop_value()
            raise
        if told.refusal is not None:
            raise _refused(*told.refusal)
        return told

    # Aside

    async def _carry_out(
        self, names: tuple[str, ...], first: guest.ValueTold | None, files: FilesToTake | None, before: Snapshot
    ) -> Taken:
        walks, owner = self._registry.walks, self._receiver.owner
        repl = self._receiver.repl
        try:
            try:
                if first is not None:
                    await self._lay_values_aside(names, first)
                if files is not None:
                    await walks.run(owner, files.stage)
                # Shielded from here on: a caller that disconnects must not leave half of it in the sandbox.
                self._committing = True
                committing = asyncio.ensure_future(self._commit(names, files, before))
                try:
                    return await asyncio.shield(committing)
                except asyncio.CancelledError:
                    await asyncio.wait([committing])
                    return committing.result()
            finally:
                repl.drop_value()
                self._giver.repl.drop_value()
                if files is not None:
                    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, files.close))
        except BaseException:
            if self._committing or not repl.alive:
                await asyncio.shield(self._go_back(before))
            raise

    async def _lay_values_aside(self, names: tuple[str, ...], first: guest.ValueTold) -> None:
        path = f"/tmp/.ramet-values-{secrets.token_hex(8)}"
        tree = SandboxTree(self._receiver.body.root)
        try:
            await self._write_values(tree, path, first)
            told = await self._receiver.repl.value(guest.unpack_values(names, path))
        finally:
            # The guest has removed it, if it came as far as that.
            with contextlib.suppress(OSError):
                tree.remove(path, False)
            tree.close()
        if told.refusal is not None:
            raise _refused(*told.refusal)

    async def _write_values(self, tree: SandboxTree, path: str, part: guest.ValueTold) -> None:
        """Pass the values on unread, a part at a time."""
        parts = 0
        with ExitStack() as closing:
            try:
                descriptor = await self._in_thread(partial(tree.open_to_write, path))
                closing.callback(os.close, descriptor)
                while True:
                    self._value_bytes, parts = self._value_bytes + len(part.data), parts + 1
                    if self._value_bytes > VALUE_BYTES_AT_MOST or parts > _PARTS_AT_MOST:
                        raise LimitReached(f"the values have more than {VALUE_BYTES_AT_MOST} bytes")
                    await self._in_thread(partial(_write_all, descriptor, part.data))
                    if not part.more:
                        return
                    part = await self._giver.repl.value(guest.next_of_value())
            except OSError as error:
                if error.errno in NO_ROOM_ERRNOS:
                    raise LimitReached("the disk of the receiving sandbox is full", hint=_FULL) from error
                raise file_error("write", path, error.errno or 5) from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """To its end also when the caller is cancelled: it uses a descriptor that is closed afterwards."""
        job = asyncio.get_running_loop().run_in_executor(self._registry.executor, work)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            await asyncio.wait([job])
            raise

    # In their places

    async def _commit(self, names: tuple[str, ...], files: FilesToTake | None, before: Snapshot) -> Taken:
        receiver = self._receiver
        if files is not None:
            await asyncio.get_running_loop().run_in_executor(self._registry.executor, files.commit)
        if names:
            told = await receiver.repl.value(guest.keep_values())
            if told.refusal is not None:
                raise _refused(*told.refusal)
        if not receiver.repl.alive:
            raise SandboxLost("the Python of the receiving sandbox ended during the take")
        changes = files.plan.changes if files is not None else ()
        self._remember(names, len(changes), before)
        # After the step: the state before it is as it was kept.
        receiver.touched(memory=bool(names), what=f"what it took from {self._giver.id}")
        return Taken(names, changes, self._value_bytes + (files.copied_bytes if files is not None else 0))

    def _remember(self, names: tuple[str, ...], count: int, before: Snapshot) -> None:
        """The state before it becomes a point, and the take a step."""
        past, points = self._receiver.past, self._receiver.points
        last = past.last
        if past.wanted == 0 or last is None:
            return
        before.hold()
        before.frozen.give_way()
        past.keep(last, before)
        last.in_pod = last.state is before
        what = [", ".join(names)] if names else []
        what += [f"{count} {'file' if count == 1 else 'files'}"] if count else []
        past.add_take(f"{' and '.join(what)} of {self._giver.id}", self._receiver.attempts)
        if points is not None:
            points.stepped()

    async def _go_back(self, before: Snapshot) -> None:
        """Give the receiver the state that it had. If even that fails, its next cell finds a kept state or none."""
        registry, receiver = self._registry, self._receiver
        step = Step(-1, "restore", state=before)
        with contextlib.suppress(RametError):
            await bring_back(registry.workshop, receiver, step, receiver.check_open, registry.retire)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _some(things: tuple[str, ...]) -> str:
    shown = ", ".join(one if one.isprintable() else ascii(one) for one in things[:_SHOWN_AT_MOST])
    more = len(things) - _SHOWN_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown


def _refused(kind: str, message: str) -> RametError:
    if kind == "unknown":
        return NameUnknown(message, hint=UNDEFINED)
    if kind == "large":
        return LimitReached(message, hint="take a part of it, or write it to a file and take that")
    return ValueUnsupported(
        message, hint="make it plain data first, or write it to a file and take that", details={"kind": kind}
    )
