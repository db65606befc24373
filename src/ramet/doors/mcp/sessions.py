"""The sandboxes and snapshots of one client. Other clients do not see them, and they end with the session."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from ramet import (
    AsyncForks,
    AsyncSandbox,
    AsyncSnapshot,
    EngineClosed,
    EngineLost,
    InvalidArgument,
    LimitReached,
    Network,
    RametError,
    SandboxClosed,
    SandboxInfo,
    Secret,
)
from ramet.integrations.reach import reach

SANDBOXES = 64  # at most, in one session
SNAPSHOTS = 64


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The options with which a session makes sandboxes."""

    template: str = "default"
    memory_mib: int | None = None
    url: str | None = None  # a Ramet server; None: an engine of this process
    idle_seconds: float = 1800  # for sandboxes at a server, which outlive this process if it is killed
    network: Network | None = None
    secrets: Mapping[str, Secret] = field(default_factory=dict)

    @property
    def reach(self) -> str:
        """A description of the network, for models."""
        return reach(self.network, self.secrets)

    async def make(self, snapshot: AsyncSnapshot | None = None) -> AsyncSandbox:
        """Make a sandbox, empty or from a snapshot. Raises RametError."""
        idle_seconds = None if self.url is None else self.idle_seconds
        if snapshot is not None:
            # A snapshot carries neither network nor secrets: they are given each time.
            return await AsyncSandbox.create(
                snapshot, idle_timeout_seconds=idle_seconds, network=self.network, secrets=self.secrets
            )
        return await AsyncSandbox.create(
            self.template,
            memory_mib=self.memory_mib,
            url=self.url,
            idle_timeout_seconds=idle_seconds,
            network=self.network,
            secrets=self.secrets,
        )


class McpSession:
    """Owns sandboxes and snapshots until it is closed. Makes the default sandbox when one is first needed."""

    def __init__(self, settings: SandboxSettings, owner: str = "", found_by_id: bool = False) -> None:
        self.owner = owner  # names the key; empty if none is needed
        self.found_by_id = found_by_id  # its client must name a sandbox to come back to it
        self.used_at = 0.0  # by the loop's clock; ManySessions sets it, to close idle sessions
        self.holders = 0  # calls in progress: the session must not be closed under them
        self._settings = settings
        self._sandboxes: dict[str, AsyncSandbox] = {}
        self._snapshots: dict[str, AsyncSnapshot] = {}
        self._default: str | None = None
        self._making_default = asyncio.Lock()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<McpSession {state}, {len(self._sandboxes)} sandboxes, {len(self._snapshots)} snapshots>"

    def __contains__(self, some_id: object) -> bool:
        return some_id in self._sandboxes or some_id in self._snapshots

    @property
    def is_empty(self) -> bool:
        return not self._sandboxes and not self._snapshots

    @property
    def default_id(self) -> str | None:
        return self._default

    @property
    def snapshot_ids(self) -> list[str]:
        return list(self._snapshots)

    async def sandbox(self, sandbox_id: str | None) -> AsyncSandbox:
        """The sandbox of this id, or the default one. Raises InvalidArgument, or RametError when it cannot be made."""
        if sandbox_id is not None:
            return self._known(sandbox_id)
        # The lock: two calls at once would otherwise make two default sandboxes, and variables would seem to vanish.
        async with self._making_default:
            if self._default is None:
                self._default = (await self.create()).id
            return self._sandboxes[self._default]

    async def create(self, snapshot_id: str | None = None) -> AsyncSandbox:
        """Make another sandbox, empty or from a snapshot. Raises LimitReached, InvalidArgument or SandboxClosed."""
        self._check_room(1)
        # During the await the session may end, see _check_still_open. Calls at the same time may pass the limit by a
        # few; it is there for models that forget to close sandboxes, and the engine has limits of its own.
        snapshot = None if snapshot_id is None else self._known_snapshot(snapshot_id)
        made = await self._settings.make(snapshot)
        await self._check_still_open(made)
        self._sandboxes[made.id] = made
        return made

    async def fork(self, sandbox: AsyncSandbox, n: int, reseed: bool) -> list[AsyncSandbox]:
        self._check_room(n)
        # Secrets are for all sandboxes of the session, forks included.
        children = await sandbox.fork(n, reseed, inherit_secrets=True)
        await self._check_still_open(children)
        self._sandboxes.update((child.id, child) for child in children)
        return children

    async def merge(self, sandbox: AsyncSandbox, winner_id: str) -> None:
        await sandbox.merge_into(self._known(winner_id, "winner"))
        self.forget(winner_id)

    async def snapshot(self, sandbox: AsyncSandbox) -> AsyncSnapshot:
        if len(self._snapshots) >= SNAPSHOTS:
            raise LimitReached(f"this session has {SNAPSHOTS} snapshots, which is its limit")
        snapshot = await sandbox.snapshot()
        await self._check_still_open(snapshot)
        self._snapshots[snapshot.id] = snapshot
        return snapshot

    async def restore(self, sandbox: AsyncSandbox, snapshot_id: str) -> None:
        await sandbox.restore(self._known_snapshot(snapshot_id))

    async def close_sandbox(self, sandbox_id: str) -> None:
        await self._known(sandbox_id).close()
        self.forget(sandbox_id)

    def forget(self, sandbox_id: str) -> None:
        """Remove a sandbox that has ended."""
        self._sandboxes.pop(sandbox_id, None)
        if self._default == sandbox_id:
            self._default = None

    async def infos(self) -> list[SandboxInfo]:
        """Information about all live sandboxes, the oldest first. Forgets those that have ended by themselves."""
        found = []
        for sandbox in list(self._sandboxes.values()):
            try:
                found.append(await sandbox.info())
            except (SandboxClosed, EngineLost, EngineClosed):
                self.forget(sandbox.id)
        return found

    async def close(self) -> None:
        """Close everything. Ignores a RametError: what it concerns is gone already, or its server will end it."""
        # First: a create that is in progress checks the flag when it returns, and closes what it has made.
        self._closed = True
        # Cleared before the await: a call during it must find nothing, and a second close has nothing to do.
        held: list[AsyncSandbox | AsyncSnapshot] = [*self._sandboxes.values(), *self._snapshots.values()]
        self._sandboxes.clear()
        self._snapshots.clear()
        self._default = None
        for error in await asyncio.gather(*(one.close() for one in held), return_exceptions=True):
            if isinstance(error, BaseException) and not isinstance(error, RametError):
                raise error

    async def _check_still_open(self, made: AsyncSandbox | AsyncForks | AsyncSnapshot) -> None:
        """Close what was made while the session ended: nobody else would. Raises SandboxClosed in that case."""
        if self._closed:
            await made.close()
            raise SandboxClosed("the session has ended")

    def _check_room(self, n: int) -> None:
        if len(self._sandboxes) + n > SANDBOXES:
            raise LimitReached(
                f"this session has {len(self._sandboxes)} sandboxes; it may have at most {SANDBOXES}",
                hint="close some with close_sandbox",
            )

    def _known(self, sandbox_id: str, argument: str = "sandbox") -> AsyncSandbox:
        if sandbox_id not in self._sandboxes:
            raise InvalidArgument(
                f"this session has no sandbox {sandbox_id!r} (argument {argument})",
                hint="list_sandboxes shows those it has",
            )
        return self._sandboxes[sandbox_id]

    def _known_snapshot(self, snapshot_id: str) -> AsyncSnapshot:
        if snapshot_id not in self._snapshots:
            raise InvalidArgument(
                f"this session has no snapshot {snapshot_id!r}", hint="list_sandboxes shows those it has"
            )
        return self._snapshots[snapshot_id]
