"""All sandboxes and snapshots of one engine, by id."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from ramet.engine.sandbox import Past, Retired, Sandbox
from ramet.engine.seams import Body, Machine
from ramet.engine.settings import Settings
from ramet.engine.snapshots import Snapshots
from ramet.errors import EngineClosed, SandboxClosed
from ramet.protocol.checks import check_sandbox, invalid
from ramet.protocol.specs import SandboxSpec, TemplateSpec

_MERGED_AT_MOST = 10_000

StartMachine = Callable[[], Awaitable[Machine]]


class Registry:
    """Owns the machine and every sandbox. Machine and templates start with the first sandbox that needs them."""

    def __init__(self, start_machine: StartMachine, settings: Settings) -> None:
        self.settings = settings
        self.executor = ThreadPoolExecutor(settings.file_threads, thread_name_prefix="ramet-files")
        self._start_machine = start_machine
        self._machine: asyncio.Task[Machine] | None = None
        self._sandboxes: dict[str, Sandbox] = {}
        self._templates: dict[tuple[str, str], TemplateSpec] = {}
        self._merged: dict[str, str] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._closed = False
        self.snapshots = Snapshots(settings.snapshots)

    def __repr__(self) -> str:
        return f"<Registry {len(self._sandboxes)} sandboxes>"

    def find(self, sandbox_id: str) -> Sandbox:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            if sandbox_id in self._merged:
                into = self._merged[sandbox_id]
                raise SandboxClosed(f"sandbox {sandbox_id} was merged: its state goes on as sandbox {into}")
            raise SandboxClosed(f"there is no sandbox {sandbox_id!r:.80}, or not any more")
        return sandbox

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A new sandbox, ready for its first cell."""
        # Whether paths of the host exist was asked by the owner's side: the engine does not see the host.
        check_sandbox(spec)
        self._check_name(spec.template)
        machine = await self.started_machine()
        await machine.template(spec.template)
        self._templates.setdefault((spec.template.name, spec.template.python), spec.template)
        body = await machine.create(spec.template, spec.limits, spec.mounts)
        sandbox = self.new_sandbox(spec, body)
        try:
            await sandbox.configure()
            self.add([sandbox])
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def new_sandbox(self, spec: SandboxSpec, body: Body, past: Past | None = None) -> Sandbox:
        """One that nobody knows of yet."""
        return Sandbox(f"sbx_{secrets.token_hex(16)}", spec, body, self.settings, past)

    def add(self, sandboxes: Iterable[Sandbox]) -> None:
        """From now on they are found by their ids, and closed with the engine."""
        if self._closed:
            raise EngineClosed("the engine was closed while the sandbox was made")
        self._sandboxes.update((sandbox.id, sandbox) for sandbox in sandboxes)

    def merged(self, winner: Sandbox, into: Sandbox) -> None:
        """The winner's id is no more; who uses it is told where its state went."""
        self._sandboxes.pop(winner.id, None)
        self._merged[winner.id] = into.id
        if len(self._merged) > _MERGED_AT_MOST:
            del self._merged[next(iter(self._merged))]

    def retire(self, retired: Retired) -> None:
        """Close a body that was replaced, without anybody waiting for it."""
        task = asyncio.ensure_future(retired.close())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def is_template(self, name: str) -> bool:
        return any(known == name for known, _ in self._templates)

    async def forget(self, some_id: str) -> None:
        """Close a sandbox or a snapshot; one that is closed already is no error."""
        await self.close_sandbox(some_id)
        await self.snapshots.drop(some_id)

    async def close_sandbox(self, sandbox_id: str) -> None:
        """Close a sandbox; one that is closed already is no error."""
        sandbox = self._sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            await sandbox.close()

    async def facts(self) -> dict[str, object]:
        machine = await self.started_machine()
        return dict(machine.facts())

    async def close(self) -> None:
        self._closed = True
        sandboxes = list(self._sandboxes.values())
        self._sandboxes.clear()
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes), return_exceptions=True)
        for task in self._retiring:
            task.cancel()  # what is left of it goes with the machine
        await self.snapshots.close()
        if self._machine is not None:
            machine = (await asyncio.gather(self._machine, return_exceptions=True))[0]
            if not isinstance(machine, BaseException):
                await machine.close()
        self.executor.shutdown(wait=False, cancel_futures=True)

    async def started_machine(self) -> Machine:
        if self._closed:
            raise EngineClosed("the engine is closed")
        # After a failure the next caller tries again: the host may have been put right meanwhile.
        if self._machine is None or (self._machine.done() and self._machine.exception() is not None):
            self._machine = asyncio.ensure_future(self._start())
        return await asyncio.shield(self._machine)

    async def _start(self) -> Machine:
        return await self._start_machine()

    def _check_name(self, template: TemplateSpec) -> None:
        known = self._templates.get((template.name, template.python))
        if known is not None and known != template:
            allowed = (
                f"another name, or the preloads of the first {template.name!r}: {', '.join(known.preload) or 'none'}"
            )
            raise invalid("template", f"{template.name!r} exists with other preloads", allowed)
        if self.snapshots.is_saved(template.name):
            raise invalid("template", f"a snapshot was saved as {template.name!r}", "another name")
