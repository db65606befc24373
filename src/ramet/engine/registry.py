"""All sandboxes and snapshots of one engine, by id: how they begin, who finds them, and how they end."""

from __future__ import annotations

import asyncio
import secrets
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

from ramet.engine import snapshots
from ramet.engine.describing import row
from ramet.engine.executions import Shelf
from ramet.engine.idle_memory import IdleMemory
from ramet.engine.lifetimes import Cause, Tombstone, Tombstones, now_ms
from ramet.engine.network.allowing import check_allowed
from ramet.engine.network.network import Network
from ramet.engine.network.preparing import prepare, taken_door
from ramet.engine.network.proxy import Proxy
from ramet.engine.packages.asker import Asker
from ramet.engine.packages.packages import Packages
from ramet.engine.packages.service import PackageService
from ramet.engine.rooms import Rooms
from ramet.engine.sandbox import Sandbox, merged_message
from ramet.engine.seams import Body, Machine
from ramet.engine.settings import Settings
from ramet.engine.snapshots import Snapshot, Snapshots
from ramet.engine.spaces import Spaces
from ramet.engine.succession import Past, Retired
from ramet.engine.turn import Caller
from ramet.engine.watching import Watchers
from ramet.errors import EngineClosed, ForkFailed, RametError, SandboxClosed
from ramet.isolation.walks import Walks
from ramet.protocol.allowances import Allowance
from ramet.protocol.checks import check_sandbox
from ramet.protocol.refusing import wrong_argument
from ramet.protocol.specs import SandboxSpec, TemplateSpec

_KEEP_ATTEMPTS = 3  # a thread that does not stop in time may do so the next time; afterwards the state is lost

_ANY = Allowance()

StartMachine = Callable[[], Awaitable[Machine]]


class Registry:
    """Owns the machine and every sandbox. Machine and templates start with the first sandbox that needs them.

    Where an ``owner`` is given, what belongs to others does not exist; None sees everything.
    """

    def __init__(self, start_machine: StartMachine, settings: Settings) -> None:
        self.settings = settings
        self.executor = ThreadPoolExecutor(settings.file_threads, thread_name_prefix="ramet-files")
        self.walks = Walks()
        self.on_lost: Callable[[str], None] = lambda _: None  # the machine ended: nothing works any more
        self._start_machine = start_machine
        self._machine: asyncio.Task[Machine] | None = None
        self._sandboxes: dict[str, Sandbox] = {}
        self._leaving: set[Sandbox] = set()  # found by nobody any more, and not closed yet
        self._templates: dict[tuple[str, str, str], TemplateSpec] = {}  # owner, name, interpreter
        self._idle_memory = IdleMemory(settings.trim_seconds, lambda: not self._sandboxes and not self._leaving)
        self.tombstones = Tombstones(settings.ended_sandboxes)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._shelf = Shelf(settings.all_executions_bytes)
        self.snapshots = Snapshots(settings)
        self.spaces = Spaces(settings)
        self.watchers = Watchers()
        self.proxy = Proxy(settings)
        self.attempts: Counter[tuple[str, bool]] = Counter()  # to connect: by owner, and whether it was allowed
        self.packages = Packages(self.hidden, self.open_host_folder, settings, self.walks)
        self.rooms = Rooms(
            lambda owner: _memory_limits(self._sandboxes.values(), owner),
            lambda owner: _memory_limits(self._leaving, owner),
        )

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

    def all_of(self, owner: str | None) -> list[Sandbox]:
        return [sandbox for sandbox in self._sandboxes.values() if owner in (None, sandbox.owner)]

    # How they begin

    async def create(self, spec: SandboxSpec, allowance: Allowance = _ANY) -> Sandbox:
        """A new sandbox, ready for its first cell."""
        # Whether paths of the host exist was asked by the owner's side: the engine does not see the host.
        check_sandbox(spec)
        self.check_shown(spec)
        self._check_name(spec.template, spec.owner)
        self.check_space(spec)
        check_allowed(spec.network, allowance)
        with self.rooms.take(spec.owner, allowance, 1, spec.limits.memory_bytes):
            machine = await self.started_machine()
            with self._booting(spec, allowance):
                await machine.template(spec.template)
                self._templates.setdefault((spec.owner, spec.template.name, spec.template.python), spec.template)
            sandbox = await self._make(machine, spec, hidden=False)
            try:
                self.add([sandbox])
            except BaseException:
                await sandbox.close()
                raise
            return sandbox

    async def _make(self, machine: Machine, spec: SandboxSpec, hidden: bool) -> Sandbox:
        network = await self.new_network(spec)
        try:
            ahead = prepare if network is not None else None
            body = await machine.create(spec.template, spec.limits, spec.mounts, ahead)
        except BaseException:
            if network is not None:
                network.close()
            raise
        sandbox = self.new_sandbox(spec, body, network=network, hidden=hidden)
        try:
            await sandbox.configure()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def hidden(self, spec: SandboxSpec) -> Sandbox:
        """One that works for another: nobody finds it, and whoever asked closes it. It counts in its owner's limits.

        Raises LimitReached where these leave no room for it.
        """
        room = self.rooms.take_hidden(spec.owner, spec.limits.memory_bytes)
        try:
            machine = await self.started_machine()
            await machine.template(spec.template)
            sandbox = await self._make(machine, spec, hidden=True)
        except BaseException:
            room.leave()
            raise
        sandbox.when_closed = room.leave
        return sandbox

    async def open_host_folder(self, path: str, writable: bool) -> int:
        """A folder of the host as a detached mount."""
        return await (await self.started_machine()).open_folder(path, writable)

    async def new_network(self, spec: SandboxSpec, past: Past | None = None) -> Network | None:
        """For a sandbox that is to be made. The proxy runs when this returns, or it raises."""
        if spec.network is None:
            return None
        known = past.secrets if past is not None else ()
        return await Network.make(self.proxy, spec.network, spec.secrets, known, spec.owner)

    def _booting(self, spec: SandboxSpec, allowance: Allowance) -> AbstractContextManager[None]:
        if spec.template.builtin:
            return nullcontext()
        return self.rooms.boot(spec.owner, spec.template.name, allowance, self._templates_of(spec.owner))

    def _templates_of(self, owner: str) -> set[str]:
        """The names of an owner's own templates."""
        own = {name for (of, name, _), spec in self._templates.items() if of == owner and not spec.builtin}
        return own | self.snapshots.names(owner)

    def save(self, snapshot: Snapshot, name: str, allowance: Allowance = _ANY) -> None:
        """Make a snapshot a template of its owner's."""
        owner = snapshot.owner
        self.rooms.check_template(owner, name, allowance, self._templates_of(owner))
        self.snapshots.save(snapshot, name, taken=self.is_template(name, owner))

    def new_sandbox(
        self,
        spec: SandboxSpec,
        body: Body,
        past: Past | None = None,
        parent: str | None = None,
        network: Network | None = None,
        hidden: bool = False,
    ) -> Sandbox:
        """One that nobody knows of yet."""
        name = f"sbx_{secrets.token_hex(16)}"
        sandbox = Sandbox(name, spec, body, self.settings, past, parent, self._shelf, network, self.proxy)
        if network is not None:
            if not hidden:
                network.beside = lambda body: PackageService(
                    self.packages, body, lambda: Asker.of(sandbox.whole_spec(), network.log.append)
                )
            network.log.on_attempt = lambda allowed: self.attempts.update([(spec.owner, allowed)])
            network.begin(body, taken_door(body))
        return sandbox

    def add(self, sandboxes: Sequence[Sandbox]) -> None:
        """From now on they are found by their ids, and closed with the engine."""
        if self._closed:
            raise EngineClosed("the engine was closed while the sandbox was made")
        for sandbox in sandboxes:
            self.check_space(sandbox.spec)  # again: others were made meanwhile
        for sandbox in sandboxes:
            self._sandboxes[sandbox.id] = sandbox
            sandbox.clock.start(partial(self._on_due, sandbox))
            self.watchers.begun(row(sandbox))

    def check_shown(self, spec: SandboxSpec) -> None:
        """Raise if a sandbox is to see what an engine of a server shows to nobody, whoever asks for it.

        The process that speaks with the network may have been taken over: it must not reach the host's files this way.
        """
        shown = self.settings.interpreter
        if shown is None:
            return
        if spec.mounts:
            raise wrong_argument("mounts", "this engine allows no mounts of host folders")
        if spec.template.interpreter != shown:
            raise wrong_argument(
                "python",
                f"this engine only makes sandboxes from {shown.executable} as it was when the engine started",
                hint="restart the engine to use another one; its sandboxes end",
            )

    def check_space(self, spec: SandboxSpec) -> None:
        """Raise if a sandbox is to be persistent and there would be no room for what is kept of it."""
        if spec.persistent:
            live = [sandbox for sandbox in self._sandboxes.values() if sandbox.spec.persistent]
            of_owner = sum(sandbox.owner == spec.owner for sandbox in live)
            self.spaces.check_room(spec.owner, len(live), of_owner)

    # How they end

    async def close_sandbox(self, sandbox_id: str, owner: str | None = None) -> None:
        """Close a sandbox; one that is closed already, or is somebody else's, is no error."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None and owner in (None, sandbox.owner):
            await self._end(sandbox, "closed", f"sandbox {sandbox.id} was closed", keep=True)

    def close_soon(self, sandbox_id: str, owner: str | None = None) -> None:
        """The same for callers who do not wait: from now on it is not found any more."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None and owner in (None, sandbox.owner):
            message = f"sandbox {sandbox.id} was closed"
            self._background(self._finish(sandbox, self._take_leave(sandbox, "closed", message), message, keep=True))

    async def forget(self, some_id: str) -> None:
        """Close a sandbox or a snapshot that nobody knows of any more; one that is closed already is no error."""
        sandbox = self._sandboxes.get(some_id)
        if sandbox is not None:
            await self._end(sandbox, "closed", f"sandbox {sandbox.id} was closed", keep=False)
        await self.snapshots.drop(some_id)

    def merged(self, winner: Sandbox, into: Sandbox) -> None:
        """The winner's id is no more; who uses it is told where its state went."""
        if self._sandboxes.pop(winner.id, None) is not None:
            self._bury(winner, "merged", merged_message(winner.id, into.id))

    def _on_due(self, sandbox: Sandbox, cause: Cause, why: str) -> None:
        self._background(self._end(sandbox, cause, f"sandbox {sandbox.id} ended: {why}", keep=True))

    async def _end(self, sandbox: Sandbox, cause: Cause, message: str, keep: bool) -> None:
        if self._sandboxes.get(sandbox.id) is sandbox:  # else somebody else ends it
            await self._finish(sandbox, self._take_leave(sandbox, cause, message), message, keep)

    def _take_leave(self, sandbox: Sandbox, cause: Cause, message: str) -> Tombstone:
        del self._sandboxes[sandbox.id]
        self._leaving.add(sandbox)
        return self._bury(sandbox, cause, message)

    async def _finish(self, sandbox: Sandbox, tombstone: Tombstone, message: str, keep: bool) -> None:
        try:
            if keep and sandbox.spec.persistent:
                try:
                    await self.spaces.keep(sandbox.id, sandbox.owner, self._freeze(sandbox, message))
                except Exception as error:
                    tombstone.unkept = str(error) or type(error).__name__
                    if not isinstance(error, RametError | TimeoutError):
                        traceback.print_exc(file=sys.stderr)
            await sandbox.close(message)
        finally:
            self._leaving.discard(sandbox)
            self._idle_memory.closed_one()

    async def _freeze(self, sandbox: Sandbox, why: str) -> Snapshot:
        """The last turn of a sandbox."""
        sandbox.wind_down(why)
        machine = await self.started_machine()
        async with asyncio.timeout(self.settings.keep_seconds):
            async with Caller().queue(sandbox, needs_repl=True):
                for _ in range(_KEEP_ATTEMPTS - 1):
                    with suppress(ForkFailed):
                        return await snapshots.freeze(machine, sandbox)
                return await snapshots.freeze(machine, sandbox)

    def _bury(self, sandbox: Sandbox, cause: Cause, message: str) -> Tombstone:
        tombstone = Tombstone(sandbox.owner, cause, message, now_ms())
        self.tombstones.add(sandbox.id, tombstone)
        self.watchers.ended(sandbox.id, sandbox.owner, cause, message)
        return tombstone

    def retire(self, retired: Retired) -> None:
        """Close a body that was replaced, without anybody waiting for it."""
        self._background(retired.close())

    def _background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The whole

    def is_template(self, name: str, owner: str) -> bool:
        return any((known_owner, known) == (owner, name) for known_owner, known, _ in self._templates)

    async def facts(self) -> dict[str, object]:
        machine = await self.started_machine()
        return dict(machine.facts())

    def machine_if_started(self) -> Machine | None:
        if self._machine is None or not self._machine.done() or self._machine.exception() is not None:
            return None
        return self._machine.result()

    async def close(self) -> None:
        self._closed = True
        self._idle_memory.stop()
        await self.packages.close()
        sandboxes = [*self._sandboxes.values(), *self._leaving]
        self._sandboxes.clear()
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes), return_exceptions=True)
        for task in self._tasks:
            task.cancel()  # what is left of it goes with the machine
        await self.snapshots.close()
        await self.spaces.close()
        if self._machine is not None:
            machine = (await asyncio.gather(self._machine, return_exceptions=True))[0]
            if not isinstance(machine, BaseException):
                await machine.close()
        await self.proxy.close()
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.walks.close()

    async def started_machine(self) -> Machine:
        if self._closed:
            raise EngineClosed("the engine is closed")
        # After a failure the next caller tries again: the host may have been put right meanwhile.
        if self._machine is None or (self._machine.done() and self._machine.exception() is not None):
            self._machine = asyncio.ensure_future(self._start())
        return await asyncio.shield(self._machine)

    async def _start(self) -> Machine:
        machine = await self._start_machine()
        machine.when_lost(lambda why: self.on_lost(why))
        return machine

    def _check_name(self, template: TemplateSpec, owner: str) -> None:
        known = self._templates.get((owner, template.name, template.python))
        if known is not None and known != template:
            preloads = ", ".join(known.preload) or "none"
            raise wrong_argument(
                "template",
                f"the template {template.name!r} already exists with other preloads: {preloads}",
                hint="choose another name, or the same preloads",
            )
        if self.snapshots.is_saved(template.name, owner):
            raise wrong_argument(
                "template", f"a snapshot is already saved as {template.name!r}", hint="choose another name"
            )


def _memory_limits(sandboxes: Iterable[Sandbox], owner: str | None) -> list[int]:
    """Of an owner's sandboxes, or of all, with the output that the engine keeps in their files: that is memory too."""
    return [
        sandbox.spec.limits.memory_bytes + sandbox.spilled_bytes
        for sandbox in sandboxes
        if owner is None or sandbox.owner == owner
    ]
