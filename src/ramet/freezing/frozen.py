"""The snapshot: a stopped process and what wakes copies of it. A template is one, and so is a frozen sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ramet.errors import RametError
from ramet.freezing import _core
from ramet.freezing.ancestry import Ancestry
from ramet.freezing.calls import InjectedCall, ResourceLimit
from ramet.freezing.memory_allowance import Claim
from ramet.isolation.files.layers import FileImage
from ramet.isolation.pods import Pod
from ramet.protocol.values.specs import Limits, MountSpec, TemplateSpec

_GIVES_WAY = 1000  # oom_score_adj of what the kernel ends first


class Recipes(Protocol):
    """All that a copy gets besides memory and threads: plain data, used for any number of copies."""

    @property
    def image(self) -> FileImage:
        """Files that the pod of a copy begins with; empty for a template."""

    @property
    def children(self) -> tuple[tuple[int, int], ...]:
        """Dead children that a copy has, with the statuses that it will read of them."""

    @property
    def taken_pids(self) -> frozenset[int]:
        """Ids that the main thread of a copy must not have: its other threads and its children have them."""

    @property
    def greeting(self) -> bytes:
        """A frame that lies in the control socket before a copy runs."""

    def calls(self, main_pid: int, limits: Limits, usual: tuple[ResourceLimit, ...]) -> tuple[InjectedCall, ...]:
        """The calls that give a copy its descriptors, folder, limits and timers.

        ``usual``: the resource limits that follow from ``limits``.
        """

    @property
    def faithful(self) -> bool:
        """Whether a copy has all that the sandbox had, so that it can take its place unnoticed."""

    def powerless_calls(self, main_pid: int, usual: tuple[ResourceLimit, ...]) -> tuple[InjectedCall, ...]:
        """Calls that a copy makes when it has dropped its capabilities: those of an image from elsewhere."""

    def failure(self, error: _core.FreezeError) -> RametError:
        """Why no copy could be thawed."""


class Frozen:
    """A snapshot. Its owner closes it; sandboxes thawed from it live on.

    The machine owns templates; a frozen sandbox belongs to the caller that asked for it.
    """

    def __init__(
        self,
        snapshot: _core.Snapshot,
        recipes: Recipes,
        template: TemplateSpec,
        limits: Limits,
        tracer: ThreadPoolExecutor,
        mounts: tuple[MountSpec, ...] = (),
        lineage: frozenset[int] = frozenset(),
        kept_pid: int | None = None,
        pause_seconds: float = 0.0,
        claim: Claim | None = None,
        pod: Pod | None = None,
        ancestry: Ancestry | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.ancestry = ancestry or Ancestry()
        self.recipes = recipes
        self.template = template
        self.limits = limits
        self.mounts = mounts
        self.lineage = lineage  # main pids of all that it was, which a copy must not have again
        self.kept_pid = kept_pid
        self.pause_seconds = pause_seconds
        self.claim = claim  # on the pod of the sandbox that was frozen
        self._pod = pod  # that a template booted in
        self._tracer = tracer
        self._own_score: int | None = None  # oom_score_adj, while it gives way
        self._thaws = 0  # under way
        self._ended_before = False  # its shadow had ended when it was closed
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Frozen {self.template.name}, {'closed' if self.closed else f'shadow {self.shadow}'}>"

    @property
    def file_bytes(self) -> int:
        return self.recipes.image.file_bytes

    @property
    def closed(self) -> bool:
        return self._closing is not None

    @property
    def shadow(self) -> int:
        """In the engine's numbering; 0 when it became a sandbox's."""
        return _core.shadow(self.snapshot)

    def give_way(self) -> None:
        """What it holds counts in its sandbox's memory limit, and when that is reached the kernel rather ends this."""
        self.allow(0)
        self._own_score = _oom_score(self.shadow)
        if self._own_score is not None:
            _set_oom_score(self.shadow, _GIVES_WAY)

    def allow(self, memory_bytes: int) -> None:
        """Let its sandbox have this much more than its limit, for what this one holds."""
        if self.claim is not None and not self.closed:
            self.claim.resize(memory_bytes)

    @contextlib.contextmanager
    def being_thawed(self) -> Iterator[None]:
        """Inside, copies of it do not inherit that they give way."""
        self._thaws += 1
        if self._own_score is not None and self._thaws == 1:
            _set_oom_score(self.shadow, self._own_score)
        try:
            yield
        finally:
            self._thaws -= 1
            if self._own_score is not None and not self._thaws and self.shadow:
                _set_oom_score(self.shadow, _GIVES_WAY)

    @property
    def faithful(self) -> bool:
        return self.recipes.faithful

    @property
    def killed(self) -> bool:
        """Whether its shadow has ended, or had before this was closed. Only the kernel does that, for memory."""
        return self._ended_before if self.closed else bool(self.shadow) and _has_ended(self.shadow)

    async def usable(self) -> bool:
        """Whether its shadow still stands where it was frozen: the kernel may have ended it."""
        if self.closed or not self.shadow:
            return False
        return await asyncio.get_running_loop().run_in_executor(self._tracer, _core.usable, self.snapshot)

    async def close(self) -> None:
        # One task for all callers, and shielded: a caller that is cancelled must not stop it half-way.
        if self._closing is None:
            self._ended_before = self.killed
            self.ancestry.ended()
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self.shadow:
            # In the tracer's thread: a traced task stays until the thread that traces it has reaped it.
            await asyncio.get_running_loop().run_in_executor(self._tracer, _core.end_snapshot, self.snapshot)
        self.recipes.image.close()
        if self.claim is not None:
            self.claim.release()
        if self._pod is not None:
            await self._pod.close()


def _has_ended(pid: int) -> bool:
    """Whether a process is a zombie: its tracer has not reaped it yet, so the number still means it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _oom_score(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/oom_score_adj", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None  # it has ended


def _set_oom_score(pid: int, score: int) -> None:
    # Where this is refused, the kernel chooses by size alone.
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(score))
