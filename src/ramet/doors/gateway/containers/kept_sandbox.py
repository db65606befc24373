"""The sandbox of a container: created when it is first needed, frozen when idle, thawed in the same state.

none --awake--> a sandbox --freeze--> a snapshot of it --awake--> a sandbox in that state
"""

from __future__ import annotations

import os

from ramet import AsyncSandbox, AsyncSnapshot
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.running.uploads import INPUTS
from ramet.errors import EngineClosed, EngineLost, SandboxClosed, SandboxLost

# Errors after which nothing is left. Snapshots are lost too, because they live in the engine's memory.
LOST = (EngineLost, EngineClosed, SandboxClosed, SandboxLost)

# Sandboxes of a server end by themselves; here only the container decides, so their end is set far away.
_FAR_SECONDS = 30 * 24 * 3600.0


class KeptSandbox:
    """Owns the sandbox or its snapshot. The container's lock makes sure that there is one call at a time."""

    def __init__(self, settings: ContainerSettings, outputs: str, sandbox: AsyncSandbox | None = None) -> None:
        self._settings = settings
        self._outputs = outputs  # the first folder for outputs
        self._sandbox = sandbox
        self._snapshot: AsyncSnapshot | None = None

    @property
    def state(self) -> str:
        if self._sandbox is not None:
            return "idle"
        return "new" if self._snapshot is None else "frozen"

    async def awake(self) -> AsyncSandbox:
        """The sandbox: as it is, thawed, or created."""
        if self._sandbox is None:
            self._sandbox = await (self._make() if self._snapshot is None else self._thaw(self._snapshot))
            snapshot, self._snapshot = self._snapshot, None
            if snapshot is not None:
                await snapshot.close()
        return self._sandbox

    async def freeze(self) -> bool:
        """Replace the sandbox by a snapshot. Returns False if there was no sandbox."""
        sandbox = self._sandbox
        if sandbox is None:
            return False
        snapshot = await sandbox.snapshot()
        self._sandbox, self._snapshot = None, snapshot
        await sandbox.close()
        return True

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        snapshot, self._snapshot = self._snapshot, None
        try:
            if sandbox is not None:
                await sandbox.close()
        finally:
            if snapshot is not None:
                await snapshot.close()

    async def _make(self) -> AsyncSandbox:
        settings = self._settings
        sandbox = await AsyncSandbox.create(
            settings.template,
            python=settings.python,
            # Results of a client's tools are text, and their commands print them as such.
            env={"INPUT_DIR": INPUTS, "OUTPUT_DIR": self._outputs, "RAMET_TOOL_OUTPUT": "text"},
            memory_mib=settings.memory_mib,
            pids=settings.pids,
            cpus=settings.cpus,
            disk_mib=settings.disk_mib,
            timeout_seconds=self._lifetime_seconds,
            idle_timeout_seconds=self._lifetime_seconds,
            network=settings.network,
            secrets=settings.secrets,
            url=settings.url,
            api_key=settings.api_key,
        )
        try:
            await sandbox.files.mkdir(INPUTS)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _thaw(self, snapshot: AsyncSnapshot) -> AsyncSandbox:
        return await AsyncSandbox.create(
            snapshot,
            timeout_seconds=self._lifetime_seconds,
            idle_timeout_seconds=self._lifetime_seconds,
            # Passed each time, because a snapshot has no network.
            network=self._settings.network,
            secrets=self._settings.secrets,
            url=self._settings.url,
            api_key=self._settings.api_key,
        )

    @property
    def _lifetime_seconds(self) -> float | None:
        url = os.environ.get("RAMET_URL") if self._settings.url is None else self._settings.url
        return _FAR_SECONDS if url else None
