"""The sandbox of a container: created when it is first needed, asleep when idle, and then as it was.

    none --awake--> a sandbox --rest--> asleep on disk, under its id --awake--> the sandbox again
                                            `-- also in the next gateway, and at a server that was started anew

Where the engine keeps no images, or has no room for another persistent sandbox, an idle one becomes a snapshot in the
engine's memory instead, which ends with the engine.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from ramet import AsyncSandbox, AsyncSnapshot
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.running.uploads import INPUTS
from ramet.errors import EngineClosed, EngineLost, ForkFailed, RametError, SandboxClosed, SandboxLost

# Errors after which the sandbox is not in the engine any more. Its state may be on disk.
LOST = (EngineLost, EngineClosed, SandboxClosed, SandboxLost)

# Sandboxes of a server end by themselves; here only the container decides, so their end is set far away.
_FAR_SECONDS = 30 * 24 * 3600.0
# The engine of a gateway that was killed writes its last checkpoints for a while, and has the sandboxes until then.
_ELSEWHERE_SECONDS = 30.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ResumedState:
    """A sandbox that was not in the engine, and is there again: as it was before the cells that are missing."""

    missing: tuple[str, ...]  # beginnings of their code


class KeptSandbox:
    """Owns the sandbox or its snapshot. The container's lock makes sure that there is one call at a time."""

    def __init__(
        self,
        settings: ContainerSettings,
        outputs: str,
        sandbox: AsyncSandbox | None = None,
        kept_id: str | None = None,
    ) -> None:
        """``outputs``: the first folder for outputs. ``kept_id``: of a persistent sandbox, this one or one on disk."""
        self.kept_id = kept_id
        self.resumed: ResumedState | None = None  # how ``awake`` came to the sandbox, until the container has read it
        self._settings = settings
        self._outputs = outputs
        self._sandbox = sandbox
        self._asleep = False
        self._stale: AsyncSandbox | None = None  # a handle of a sandbox that the engine does not have any more
        self._snapshot: AsyncSnapshot | None = None

    @property
    def state(self) -> str:
        if self._snapshot is not None:
            return "frozen"
        if self._sandbox is None:
            return "new" if self.kept_id is None else "frozen"
        return "frozen" if self._asleep else "idle"

    async def awake(self) -> AsyncSandbox:
        """The sandbox: as it is, woken, resumed or created. Raises RametError; SandboxClosed: nothing is kept of it."""
        if self._sandbox is None:
            if self._snapshot is not None:
                self._sandbox = await self._create(self._snapshot, persistent=False)
                snapshot, self._snapshot = self._snapshot, None
                await snapshot.close()
            elif self.kept_id is not None:
                self._sandbox = await self._resume(self.kept_id)
                self.resumed = ResumedState(tuple(cell.code for cell in self._sandbox.missing_cells))
            else:
                self._sandbox = await self._make()
        self._asleep = False
        return self._sandbox

    async def rest(self) -> bool:
        """Give up memory and processes. Returns False if there was nothing to give up."""
        sandbox = self._sandbox
        if sandbox is None or self._asleep:
            return False
        if self.kept_id is not None and await self._hibernated(sandbox):
            self._asleep = True
            return True
        snapshot = await sandbox.snapshot()
        self._sandbox, self._snapshot = None, snapshot
        await self._end(sandbox)
        return True

    async def leave(self) -> None:
        """The gateway ends. What can be on disk is there afterwards, and the engine has nothing of it any more."""
        sandbox = self._sandbox
        if self.kept_id is None:
            await self.close()
        elif sandbox is None:
            await self._close_stale()
        elif self._asleep or await self._hibernated(sandbox):
            self._sandbox = None
            await sandbox.close()
        else:
            await self.close()

    def let_go(self) -> bool:
        """Note that the engine does not have the sandbox any more. Returns whether its state may be on disk."""
        if self.kept_id is None:
            return False
        if self._sandbox is not None:
            self._sandbox, self._stale = None, self._sandbox
        return True

    async def copies(self, n: int) -> list[KeptSandbox]:
        """Copies of the sandbox, awake. All, or none."""
        sandbox = await self.awake()
        if self.kept_id is None:
            # All sandboxes of the gateway get its secrets, so the copies do too.
            children = await sandbox.fork(n, inherit_secrets=True)
            return [KeptSandbox(self._settings, self._outputs, child) for child in children]
        # Children of a fork are not persistent; what is made from a snapshot can be.
        async with AsyncExitStack() as undo, await sandbox.snapshot() as snapshot:
            copies = []
            for _ in range(n):
                copy = KeptSandbox(self._settings, self._outputs)
                copy._sandbox = await copy._create_kept(snapshot)
                undo.push_async_callback(copy.close)
                copies.append(copy)
            undo.pop_all()
        return copies

    async def close(self) -> None:
        """End it, and remove what is on disk of it."""
        sandbox, self._sandbox = self._sandbox, None
        snapshot, self._snapshot = self._snapshot, None
        try:
            if sandbox is not None:
                await self._end(sandbox)
            elif self.kept_id is not None:
                await self._close_stale()
                await self._discard(self.kept_id)
        finally:
            if snapshot is not None:
                await snapshot.close()

    async def _end(self, sandbox: AsyncSandbox) -> None:
        kept_id, self.kept_id = self.kept_id, None
        if kept_id is not None:
            await self._discard(kept_id)  # before it is closed, which would write its last state
        with suppress(*LOST):
            await sandbox.close()

    async def _close_stale(self) -> None:
        stale, self._stale = self._stale, None
        if stale is not None:
            with suppress(RametError):
                await stale.close()  # or the handle would close the sandbox of its id when it is garbage collected

    async def _discard(self, kept_id: str) -> None:
        await AsyncSandbox.discard(kept_id, url=self._settings.url, api_key=self._settings.api_key)

    async def _hibernated(self, sandbox: AsyncSandbox) -> bool:
        """Returns False where the engine keeps no images."""
        try:
            await sandbox.hibernate()
        except RametError as error:
            if error.details.get("cause") == "no images":
                return False
            raise
        return True

    async def _make(self) -> AsyncSandbox:
        settings = self._settings
        sandbox = await self._create_kept(
            settings.template,
            python=settings.python,
            # Results of a client's tools are text, and their commands print them as such.
            env={"INPUT_DIR": INPUTS, "OUTPUT_DIR": self._outputs, "RAMET_TOOL_OUTPUT": "text"},
            memory_mib=settings.memory_mib,
            pids=settings.pids,
            cpus=settings.cpus,
            disk_mib=settings.disk_mib,
        )
        try:
            await sandbox.files.mkdir(INPUTS)
        except BaseException:
            await self._end(sandbox)
            raise
        return sandbox

    async def _create_kept(self, source: str | AsyncSnapshot, **options: Any) -> AsyncSandbox:
        """A persistent sandbox if there can be one."""
        try:
            sandbox = await self._create(source, persistent=True, **options)
        except (ForkFailed, *LOST):
            raise
        except RametError:
            # No images, or no room for another one: it lives as long as the engine.
            return await self._create(source, persistent=False, **options)
        self.kept_id = sandbox.id
        return sandbox

    async def _create(self, source: str | AsyncSnapshot, *, persistent: bool, **options: Any) -> AsyncSandbox:
        at_server = self._at_server
        return await AsyncSandbox.create(
            source,
            persistent=persistent,
            timeout_seconds=_FAR_SECONDS if at_server else None,
            idle_timeout_seconds=_FAR_SECONDS if at_server else None,
            # A gateway that was killed has left it; one that ends in order puts it to sleep first.
            hibernate_after_seconds=2 * self._settings.container_idle_seconds if at_server and persistent else None,
            # Passed each time, because a snapshot has no network.
            network=self._settings.network,
            secrets=self._settings.secrets,
            url=self._settings.url,
            api_key=self._settings.api_key,
            **options,
        )

    async def _resume(self, kept_id: str) -> AsyncSandbox:
        await self._close_stale()
        until = time.monotonic() + _ELSEWHERE_SECONDS
        while True:
            try:
                return await AsyncSandbox.resume(
                    kept_id,
                    network=self._settings.network,
                    secrets=self._settings.secrets,
                    url=self._settings.url,
                    api_key=self._settings.api_key,
                )
            except RametError as error:
                if error.details.get("cause") != "alive elsewhere" or time.monotonic() > until:
                    raise
            await asyncio.sleep(_LOOK_SECONDS)

    @property
    def _at_server(self) -> bool:
        return bool(place_of(self._settings))


def place_of(settings: ContainerSettings) -> str:
    """The URL of the server that has the sandboxes. Empty: the engine of this process."""
    return os.environ.get("RAMET_URL", "") if settings.url is None else settings.url
