"""The sandboxes of one engine that are on disk: hibernated, persistent, or left by an engine that has ended."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

from ramet.engine.cells.descriptions import row
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.cells.turns import Caller
from ramet.engine.making.carried_state import RetiredBody
from ramet.engine.making.lifetimes import now_ms
from ramet.engine.making.snapshots import Snapshot
from ramet.engine.making.workshop import Workshop
from ramet.engine.seams import Journal, JournalContents, Machine
from ramet.engine.sleeping.checkpoints import Checkpoints
from ramet.engine.sleeping.hibernation import hibernate
from ramet.errors import LimitReached, RametError
from ramet.isolation.files.cache_folders import space_image_name

FLUSH_SECONDS = 20.0  # for the last checkpoints of an engine that ends
LOOK_SECONDS = 0.05
ENDING_SECONDS = 5.0  # that an engine may take to end after it was killed
_ASLEEP_AT_MOST = 1000  # of one key of a server

Perform = Callable[[Coroutine[object, object, None]], asyncio.Task[None]]


@dataclass(frozen=True, slots=True)
class Dormant:
    """A sandbox on disk that no engine has: this one has it again with the first call for it."""

    id: str
    owner: str
    about: Mapping[str, object]  # its row in lists, with its limits


class Sleepers:
    """Owns the journals and checkpoints of the sandboxes that are on disk.

    ``server``: its name. Sandboxes that an earlier engine of this server had are there again, under their ids. Empty:
    this engine serves one program, which resumes its own.
    """

    def __init__(
        self,
        workshop: Workshop,
        freeze: Callable[[Sandbox], Awaitable[Snapshot]],
        perform: Perform,
        server: str,
    ) -> None:
        self._workshop = workshop
        self._freeze = freeze
        self._perform = perform
        self.server = server
        self.dormant: dict[str, Dormant] = {}
        self._finding: asyncio.Task[None] | None = None
        self._found = not server  # all that there are
        self._kept: dict[str, Checkpoints] = {}  # by id

    def __repr__(self) -> str:
        return f"<Sleepers, {len(self._kept)} on disk, {len(self.dormant)} of earlier engines>"

    # Sandboxes of earlier engines

    async def find(self) -> None:
        """Find out which sandboxes earlier engines of this server have left. Once; others wait."""
        if not self._found:
            # One task for all callers, and shielded: a caller that is cancelled must not stop it for the others.
            if self._finding is None:
                self._finding = self._perform(self._find())
            await asyncio.shield(self._finding)

    async def _find(self) -> None:
        try:
            machine = await self._workshop.machine()
            loop = asyncio.get_running_loop()
            end = loop.time() + ENDING_SECONDS
            while await self._look(machine) and loop.time() < end:
                await asyncio.sleep(LOOK_SECONDS)
        except Exception:
            traceback.print_exc(file=sys.stderr)  # those that it has are served all the same
        finally:
            self._found = True

    async def _look(self, machine: Machine) -> bool:
        """Whether there may be more: an earlier engine of this server that was killed has not ended yet."""
        more = False
        found = await machine.journals()
        images = set(await machine.image_names(""))  # after the journals: none of them has got its image since
        for name, contents, held in found:
            one = _dormant(contents)
            if one is None or one.about.get("server") != self.server:
                continue
            if name != space_image_name(one.owner, one.id):
                continue
            if held:
                more = more or one.id not in self._kept
            elif _expired(one.about) or name not in images:
                await self._remove(machine, name)
            elif not contents.ended:
                self.dormant[one.id] = one
        return more

    @property
    def found(self) -> bool:
        """Whether ``dormant`` is complete."""
        return self._found

    def rows(self, owner: str | None) -> list[dict[str, object]]:
        """Rows of the dormant ones, for lists."""
        hidden = ("limits", "python", "allowance", "server")
        return [
            {name: value for name, value in one.about.items() if name not in hidden}
            for one in self.dormant.values()
            if owner in (None, one.owner)
        ]

    def find_dormant(self, sandbox_id: str, owner: str | None) -> Dormant | None:
        one = self.dormant.get(sandbox_id)
        return one if one is not None and owner in (None, one.owner) else None

    async def close_dormant(self, one: Dormant) -> None:
        """A client closes one that was not used since the engine started."""
        self.dormant.pop(one.id, None)
        machine = await self._workshop.machine()
        name = space_image_name(one.owner, one.id)
        if one.about.get("persistent") is True:
            with suppress(RametError):
                journal = await machine.open_journal(name)
                journal.ended()
                journal.close()
        else:
            await self._remove(machine, name)

    async def kept(self, owner: str) -> list[dict[str, object]]:
        """Sandboxes that can be resumed: those that no engine has."""
        machine = await self._workshop.machine()
        prefix = space_image_name(owner, "")
        images = set(await machine.image_names(prefix))
        found = []
        for name, contents, held in await machine.journals():
            one = _dormant(contents)
            if one is not None and one.owner == owner and name in images and not held:
                found.append({**one.about, "state": "ended" if contents.ended else "hibernated"})
        return found

    async def discard(self, sandbox_id: str, owner: str) -> None:
        """Remove what is on disk of a sandbox that this engine does not have. Raises RametError if another has it."""
        machine = await self._workshop.machine()
        name = space_image_name(owner, sandbox_id)
        self.dormant.pop(sandbox_id, None)
        if machine.keeps_images:
            journal = await machine.open_journal(name)
            await machine.forget_image(name)
            journal.close(remove=True)

    async def _remove(self, machine: Machine, name: str) -> None:
        with suppress(RametError):
            journal = await machine.open_journal(name)
            await machine.forget_image(name)
            journal.close(remove=True)

    # Sandboxes of this engine

    async def watch(self, sandbox: Sandbox) -> None:
        """Keep a persistent sandbox on disk from now on. Raises RametError where that cannot be."""
        if not sandbox.spec.persistent:
            return
        machine = await self._workshop.machine()
        if machine.keeps_images:
            self.adopt(sandbox, await machine.open_journal(space_image_name(sandbox.owner, sandbox.id))).begin()
        elif not self.server:  # a server keeps its state in memory when it ends
            raise RametError(
                "a persistent sandbox needs a folder for its image, and this engine has none",
                hint="unset RAMET_IMAGES, and see that ~/.cache/ramet is a folder that only you can write to",
            )

    def adopt(self, sandbox: Sandbox, journal: Journal, changes: int = 0) -> Checkpoints:
        """Take over the journal of a sandbox. ``changes``: the number of the last one that it has."""
        about = partial(self._about, sandbox)
        journal.introduce(about())
        made = Checkpoints(sandbox, journal, about, self._workshop, self._freeze, self._perform, changes)
        sandbox.keeping = self._kept[sandbox.id] = made
        self.dormant.pop(sandbox.id, None)
        return made

    def _about(self, sandbox: Sandbox) -> dict[str, object]:
        """What the next engine is to know of a sandbox before it reads its image."""
        return {
            **row(sandbox),
            "state": "hibernated",
            "python": sandbox.spec.template.python,
            "limits": asdict(sandbox.spec.limits),
            "server": self.server,
            "allowance": self._workshop.quotas.allowance_of(sandbox.owner).header(),
        }

    def hibernate(self, sandbox: Sandbox, caller: Caller) -> Awaitable[int]:
        """Put a sandbox to sleep. The turn is in its queue when this returns. Awaited: bytes on disk.

        Raises LimitReached where its owner has as many on disk as one may.
        """
        if self.server and not sandbox.sleep.asleep:
            self._check_count(sandbox.owner)
        return hibernate(self._workshop, sandbox, caller, self._keep, self._retire)

    async def _keep(self, sandbox: Sandbox) -> None:
        """Have its journal, so that what is written of it is found, and removed when it ends."""
        if sandbox.id in self._kept:
            return
        machine = await self._workshop.machine()
        journal = await machine.open_journal(space_image_name(sandbox.owner, sandbox.id))
        if sandbox.id in self._kept or sandbox.state == "closed":
            journal.close()
            sandbox.check_open()
        else:
            self.adopt(sandbox, journal)

    async def hibernate_if_idle(self, sandbox: Sandbox) -> None:
        """Put an idle sandbox to sleep. A call that comes meanwhile does not wait for it."""
        if sandbox.in_use or sandbox.sleep.asleep:
            return
        caller = Caller()
        try:
            work = asyncio.ensure_future(self.hibernate(sandbox, caller))
        except RametError:
            return  # it stays awake
        while not work.done():
            await asyncio.wait([work], timeout=LOOK_SECONDS)
            if sandbox.queue.waiting or sandbox.sleep.wanted:
                caller.leave()  # it wakes up at once: what was written so far is dropped
        with suppress(RametError):
            work.result()

    def _check_count(self, owner: str) -> None:
        """One that sleeps counts against no other limit of its owner: without this one, a key could fill the disk with
        the records of its sandboxes, and the server's memory with what is known of them.
        """
        dormant = sum(one.owner == owner for one in self.dormant.values())
        asleep = sum(kept.sandbox.owner == owner and kept.sandbox.sleep.asleep for kept in self._kept.values())
        if dormant + asleep >= _ASLEEP_AT_MOST:
            raise LimitReached(
                f"the sandbox cannot hibernate: {dormant + asleep} of yours do already, and {_ASLEEP_AT_MOST} may",
                hint="close those that are not needed any more",
                details={"limit": "hibernated", "allowed": _ASLEEP_AT_MOST},
            )

    def _retire(self, retired: RetiredBody) -> Awaitable[None]:
        return self._perform(retired.close())

    # How they end

    def stop(self, sandbox: Sandbox) -> None:
        """It ends: no checkpoint is begun any more."""
        if (kept := self._kept.get(sandbox.id)) is not None:
            kept.stop()

    async def ended(self, sandbox: Sandbox, keep: bool) -> None:
        """It has ended. Its image is the state that it had, or goes with it."""
        kept = self._kept.pop(sandbox.id, None)
        if kept is None:
            return
        if keep:
            kept.journal.ended()
            kept.journal.close()
            return
        machine = self._workshop.machine_if_started()
        if machine is not None:
            with suppress(RametError):
                await machine.forget_image(space_image_name(sandbox.owner, sandbox.id))
        kept.journal.close(remove=True)

    async def flush(self) -> None:
        """The engine ends: write what has changed since the last checkpoints, for a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.gather(*(kept.flush() for kept in self._kept.values()), return_exceptions=True)

    async def close(self, sandboxes: Iterable[Sandbox]) -> None:
        """Let go of all journals. What is not persistent goes, but a server has those that sleep again."""
        for sandbox in sandboxes:
            if sandbox.id in self._kept and not sandbox.spec.persistent and not (self.server and sandbox.sleep.asleep):
                await self.ended(sandbox, keep=False)
        for kept in self._kept.values():
            kept.stop()
            kept.journal.close()


def _dormant(contents: JournalContents) -> Dormant | None:
    sandbox_id, owner = contents.about.get("id"), contents.about.get("owner")
    if not isinstance(sandbox_id, str) or not isinstance(owner, str):
        return None
    return Dormant(sandbox_id, owner, contents.about)


def _expired(about: Mapping[str, object]) -> bool:
    expires_ms = about.get("expires_ms")
    return type(expires_ms) is int and expires_ms < now_ms() and about.get("persistent") is not True
