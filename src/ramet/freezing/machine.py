"""The machine: makes sandboxes by thawing templates into pods. The engine decides, this carries out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import signal
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ramet.errors import NO_ROOM_ERRNOS, LimitReached, RametError
from ramet.freezing import _core
from ramet.freezing.processes import end_process
from ramet.freezing.template import FrozenTemplate, boot_template, describe
from ramet.isolation import cgroups
from ramet.isolation.holder import Broker, Holder
from ramet.isolation.pods import Pod, PodMaker
from ramet.isolation.threadwork import finish
from ramet.isolation.walls import read_walls
from ramet.protocol.specs import Limits, MountSpec, TemplateSpec

_THAW_SECONDS = 10.0
_PODS_READY = 2  # empty pods, for sandboxes with other limits and for the ones below
_SANDBOXES_READY = 2  # thawed ahead, for each kind that was asked for: a waiting one costs about a megabyte
_REFILL_AFTER_SECONDS = 0.01  # whoever took one is about to use it: making the next at once would slow that down
_FIRST_PID, _LAST_PID = 1000, 30_000
_DESCRIPTORS = (4096, 65_536)  # soft and hard limit of open descriptors in a sandbox
_DESCRIPTORS_AT_LEAST = 1024  # the guest's own are just above 1000
_PENDING_SIGNALS = 2048
_MESSAGE_QUEUE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Death:
    """How a REPL ended."""

    exit_code: int | None
    signal: int | None
    out_of_memory: bool


@dataclass(slots=True)
class _Life:
    """One REPL process with its shadow; a sandbox has another after a revival."""

    shadow_pidfd: int
    shadow_end: asyncio.Future[None] | None
    repl: int  # in the engine's numbering
    repl_pidfd: int
    pid: int  # in the pod
    death: asyncio.Future[Death]
    kills_before: int


class Machine:
    """Owner of the holder, the templates and the pods of one engine."""

    def __init__(self, holder: Holder, maker: PodMaker, delegation: cgroups.Delegation) -> None:
        self._holder = holder
        self._maker = maker
        self._delegation = delegation
        # ptrace binds a stopped task to one thread: this one.
        self._tracer = ThreadPoolExecutor(1, thread_name_prefix="ramet-tracer")
        self._templates: dict[TemplateSpec, asyncio.Task[FrozenTemplate]] = {}
        self._pids = itertools.cycle(range(_FIRST_PID, _LAST_PID))
        self._ready: dict[tuple[TemplateSpec, Limits], list[Body]] = {}
        self._refills: dict[tuple[TemplateSpec, Limits], asyncio.Task[None]] = {}
        self._closed = False
        self._hits = 0
        self._misses = 0
        self.last_thaw_microseconds: tuple[float, ...] = ()

    @classmethod
    async def start(cls, broker: socket.socket, delegation: cgroups.Delegation, guest: str) -> Machine:
        door = Broker(broker)
        holder = await Holder.start(door, guest)
        return cls(holder, PodMaker(holder, door, delegation, _PODS_READY), delegation)

    async def template(self, spec: TemplateSpec) -> None:
        """Boot and freeze it unless that was done; concurrent calls share one boot."""
        await self._frozen(spec)

    async def _frozen(self, spec: TemplateSpec) -> FrozenTemplate:
        if spec not in self._templates:
            work = boot_template(spec, self._holder, self._maker, self._tracer, cpus=2.0)
            self._templates[spec] = asyncio.create_task(work)
        task = self._templates[spec]
        try:
            return await asyncio.shield(task)
        except Exception:
            if self._templates.get(spec) is task:
                del self._templates[spec]  # the next one who asks tries again
            raise

    async def create(self, template: TemplateSpec, limits: Limits, mounts: Sequence[MountSpec]) -> Body:
        """A sandbox: one that was thawed ahead of time, or a new one."""
        key = (template, limits)
        ready = self._ready.setdefault(key, [])
        while ready and not mounts:
            body = ready.pop()
            if not body.death.done():
                self._hits += 1
                self._refill(key)
                return body
            await body.close()
        self._misses += 1
        body = await self._make(template, limits, mounts)
        if not mounts:
            self._refill(key)
        return body

    def _refill(self, key: tuple[TemplateSpec, Limits]) -> None:
        if not self._closed and (key not in self._refills or self._refills[key].done()):
            self._refills[key] = asyncio.create_task(self._fill(key))

    async def _fill(self, key: tuple[TemplateSpec, Limits]) -> None:
        """Thaw ahead for whoever asks next for the same kind."""
        await asyncio.sleep(_REFILL_AFTER_SECONDS)
        # What cannot be made ahead is tried again, and told, when somebody asks for it.
        with contextlib.suppress(Exception):
            while len(self._ready[key]) < _SANDBOXES_READY and not self._closed:
                self._ready[key].append(await self._make(*key, ()))

    async def _make(self, template: TemplateSpec, limits: Limits, mounts: Sequence[MountSpec]) -> Body:
        """A pod, and the template thawed into it."""
        await self._frozen(template)
        pod = await self._maker.take(template.interpreter, limits, mounts)
        try:
            life = await self._wake(template, pod)
        except BaseException:
            await pod.close()
            raise
        return Body(self, template, pod, life)

    async def _wake(self, template: TemplateSpec, pod: Pod) -> _Life:
        """The template thawed into an empty pod; one that the host's kernel has killed meanwhile is booted again."""
        frozen = await self._frozen(template)
        try:
            return await self._thaw(frozen, pod)
        except RametError:
            if not await self._forget(frozen):
                raise
        return await self._thaw(await self._frozen(template), pod)

    async def _forget(self, frozen: FrozenTemplate) -> bool:
        """True when no sandbox can be made from it any more, which is not kept then."""
        if await asyncio.get_running_loop().run_in_executor(self._tracer, _core.usable, frozen.snapshot):
            return False
        task = self._templates.get(frozen.spec)
        if task is not None and task.done() and task.result() is frozen:
            del self._templates[frozen.spec]
            await frozen.close(self._tracer)
        return True

    async def _thaw(self, frozen: FrozenTemplate, pod: Pod) -> _Life:
        pid = next(number for number in self._pids if number not in frozen.thread_ids)
        kills_before = pod.group.out_of_memory_kills() if pod.group is not None else 0
        loop = asyncio.get_running_loop()
        try:
            work = loop.run_in_executor(
                self._tracer,
                _core.thaw,
                frozen.snapshot,
                pod.handle.init_pid,
                pod.root,
                pid,
                self._maker.group_count(),
                _resource_limits(pod.limits, self._delegation),
                frozen.files,
                _THAW_SECONDS,
            )
            _, shadow_pidfd, repl, repl_pidfd, spent = await finish(work, _end_thawed)
        except _core.FreezeError as error:
            kind = LimitReached if error.args[1] in NO_ROOM_ERRNOS else RametError
            raise kind(f"cannot make a sandbox from template {frozen.spec.name!r}: {describe(error)}") from error
        self.last_thaw_microseconds = spent
        pod.let_go()
        return _Life(shadow_pidfd, None, repl, repl_pidfd, pid, loop.create_future(), kills_before)

    async def close(self) -> None:
        self._closed = True
        for refill in self._refills.values():
            refill.cancel()
        await asyncio.gather(*self._refills.values(), return_exceptions=True)
        bodies = [body for waiting in self._ready.values() for body in waiting]
        await asyncio.gather(*(body.close() for body in bodies), return_exceptions=True)
        await self._maker.close()
        for task in self._templates.values():
            task.cancel()
        done = await asyncio.gather(*self._templates.values(), return_exceptions=True)
        for frozen in done:
            if isinstance(frozen, FrozenTemplate):
                await frozen.close(self._tracer)
        self._holder.close()
        self._tracer.shutdown(wait=True)

    def facts(self) -> dict[str, object]:
        return {
            "cgroup_version": self._delegation.version,
            "cgroup_controllers": sorted(self._delegation.folders),
            "pool_hits": self._hits,
            "pool_misses": self._misses,
            "last_thaw_microseconds": list(self.last_thaw_microseconds),
        }


def _end_thawed(made: _core.Thawed) -> None:
    """Nobody waits for this sandbox any more: both of its processes go, and their pidfds."""
    _, shadow_pidfd, _, repl_pidfd, _ = made
    end_process(repl_pidfd)
    end_process(shadow_pidfd)


def _resource_limits(limits: Limits, delegation: cgroups.Delegation) -> tuple[tuple[int, int, int], ...]:
    """Limits per process; without control groups they are all there is."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Half of the engine's: descriptors on their way through sockets are counted for all of one uid, against the limit
    # of whoever sends the next, so a sandbox that sends all it may must leave the engine room to make another.
    hard = (
        _DESCRIPTORS[1]
        if most == resource.RLIM_INFINITY
        else min(_DESCRIPTORS[1], max(most // 2, _DESCRIPTORS_AT_LEAST))
    )
    chosen = [
        (resource.RLIMIT_NOFILE, min(_DESCRIPTORS[0], hard), hard),
        _at_most(resource.RLIMIT_NPROC, limits.pids),  # nobody may raise what the owner's session was given
        # Whatever the owner's session may do: real-time threads of a sandbox would take the processors from everybody.
        (resource.RLIMIT_NICE, 0, 0),
        (resource.RLIMIT_RTPRIO, 0, 0),
        # Counted for all sandboxes together as well: none may take what the others need.
        _at_most(resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS),
        _at_most(resource.RLIMIT_MSGQUEUE, _MESSAGE_QUEUE_BYTES),
    ]
    if "memory" not in delegation.folders:
        chosen.append(_at_most(resource.RLIMIT_DATA, limits.memory_bytes))
    return tuple(chosen)


def _at_most(kind: int, wanted: int) -> tuple[int, int, int]:
    _, most = resource.getrlimit(kind)
    value = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    return kind, value, value


class Body:
    """One sandbox's REPL in its pod. Owned by the engine's sandbox, which closes it."""

    def __init__(self, machine: Machine, template: TemplateSpec, pod: Pod, life: _Life) -> None:
        self._machine = machine
        self._template = template
        self._pod = pod
        self._life = life
        self._closing: asyncio.Task[None] | None = None
        self._watch()

    @property
    def pid(self) -> int:
        return self._life.pid

    @property
    def control(self) -> socket.socket:
        return self._pod.ends.control

    @property
    def stdout(self) -> int:
        return self._pod.ends.stdout

    @property
    def stderr(self) -> int:
        return self._pod.ends.stderr

    @property
    def root(self) -> int:
        return self._pod.root

    @property
    def death(self) -> asyncio.Future[Death]:
        return self._life.death

    def _watch(self) -> None:
        asyncio.get_running_loop().add_reader(self._life.repl_pidfd, self._on_end)

    def _on_end(self) -> None:
        """The REPL is a zombie: reap it, and end its shadow at once, because the shadow holds the memory."""
        life = self._life
        try:
            status = os.waitid(os.P_PIDFD, life.repl_pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            status = None
        else:
            if status is None:
                return  # not yet: the engine never waits here
        asyncio.get_running_loop().remove_reader(life.repl_pidfd)
        os.close(life.repl_pidfd)
        life.repl_pidfd = -1
        life.shadow_end = end_process(life.shadow_pidfd)
        if status is None or status.si_code == os.CLD_EXITED:
            death = Death(status.si_status if status is not None else None, None, False)
        else:
            group = self._pod.group
            starved = (
                status.si_status == signal.SIGKILL
                and group is not None
                and group.out_of_memory_kills() > life.kills_before
            )
            death = Death(None, status.si_status, starved)
        if not life.death.done():
            life.death.set_result(death)

    def signal(self, number: int) -> None:
        if self._life.repl_pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._life.repl_pidfd, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    async def _ended(self) -> None:
        self.kill()
        await self._life.death
        if self._life.shadow_end is not None:
            await self._life.shadow_end

    async def revive(self) -> None:
        """A fresh REPL in the same pod. What else ran in the pod is ended: it belonged to the REPL that is gone."""
        await self._ended()
        await self._pod.empty()
        self._life = await self._machine._wake(self._template, self._pod)
        self._watch()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._ended()
        await self._pod.close()

    def usage(self) -> dict[str, int]:
        """What the control group and the kernel say of the REPL's memory. Reading it costs milliseconds."""
        found = self._pod.group.usage() if self._pod.group is not None else {}
        if self._life.repl_pidfd < 0:
            return found
        with contextlib.suppress(OSError, ValueError):
            private = 0
            with open(f"/proc/{self._life.repl}/smaps_rollup", encoding="ascii") as lines:
                for line in lines:
                    if line.startswith("Private_"):
                        private += int(line.split()[1]) * 1024
            found["private_bytes"] = private
            with open(f"/proc/{self._life.repl}/status", encoding="ascii") as lines:
                found["page_table_bytes"] = next(
                    int(line.split()[1]) * 1024 for line in lines if line.startswith("VmPTE:")
                )
        return found

    def walls(self) -> dict[str, object]:
        return read_walls(
            self._life.repl if self._life.repl_pidfd >= 0 else None, self._pod.limits, self._machine._delegation
        )
