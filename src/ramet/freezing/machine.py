"""The machine: makes sandboxes by thawing templates and snapshots into pods. The engine decides, this carries out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from ramet.errors import ForkFailed, LimitReached, RametError
from ramet.freezing import _core, live
from ramet.freezing.body import Body, Life, Prepared
from ramet.freezing.failures import failure
from ramet.freezing.forking import Batch, Handover, Plan, Thawed
from ramet.freezing.live import Frozen, Recipes, Subject
from ramet.freezing.processes import end_process
from ramet.freezing.resource_limits import resource_limits
from ramet.freezing.shared_memory import SharedMemoryWatch
from ramet.freezing.template import FrozenTemplate, boot_template
from ramet.isolation import cgroups, hints, syscalls
from ramet.isolation.differences import diff_files
from ramet.isolation.holder import Broker, Holder
from ramet.isolation.pod_pool import UNUSED_SECONDS, PodKind
from ramet.isolation.pods import Pod, PodMaker
from ramet.isolation.threadwork import finish
from ramet.isolation.walks import Walks
from ramet.protocol import guest
from ramet.protocol.differences import FileChange
from ramet.protocol.specs import Limits, MountSpec, TemplateSpec

_THAW_SECONDS = 10.0
_PODS_READY = 4  # empty pods, for forks, for sandboxes with other limits and for the ones below
_KINDS_READY = 8  # template and limits; those that were asked for last
_SANDBOXES_READY = 2  # thawed ahead, for each kind that was asked for: a waiting one costs about a megabyte
_QUIET_SECONDS = 0.01  # whoever makes several in a row asks for the next one sooner
_FIRST_PID, _LAST_PID = 1000, 30_000
_STRAGGLER_SECONDS = 0.05
_NOT_THAWED = "a copy of the sandbox could not be thawed"


# What is done to a sandbox of its kind that was thawed ahead.
Prepare = Callable[[Body], Awaitable[Prepared]]


class Kind(NamedTuple):
    """Sandboxes that can stand in for one another."""

    template: TemplateSpec
    limits: Limits
    prepare: Prepare | None = None


@dataclass(slots=True, eq=False)
class _Waiting:
    """Sandboxes of one kind that were thawed ahead."""

    used: float = 0.0
    bodies: list[Body] = field(default_factory=list)


class Ahead(NamedTuple):
    """What was prepared for a fork while its parent was being frozen."""

    plans: list[Plan]
    pods: list[asyncio.Task[Pod]]
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Forked:
    """What one fork made."""

    bodies: list[Body]
    pause_seconds: float
    file_bytes: int


class Machine:
    """Owner of the holder, the templates and the pods of one engine."""

    def __init__(
        self, holder: Holder, broker: Broker, maker: PodMaker, delegation: cgroups.Delegation, walks: Walks
    ) -> None:
        self._holder = holder
        self._broker = broker
        self._maker = maker
        self._delegation = delegation
        self._surroundings = cgroups.Surroundings(delegation)
        # ptrace binds a stopped task to one thread: this one.
        self._tracer = ThreadPoolExecutor(1, thread_name_prefix="ramet-tracer")
        self._walks = walks
        self._templates: dict[TemplateSpec, asyncio.Task[FrozenTemplate]] = {}
        self._pids = itertools.cycle(range(_FIRST_PID, _LAST_PID))
        self._ready: dict[Kind, _Waiting] = {}
        maker.on_crowded = self._give_up_ready
        self._tidying: asyncio.Task[None] | None = None
        self._refills: dict[Kind, asyncio.Task[None]] = {}
        self._asked_at = 0.0  # for a sandbox, the last time
        self._stragglers: asyncio.Task[None] | None = None
        self._discards: set[asyncio.Task[None]] = set()
        self._closed = False
        self._hits = 0
        self._misses = 0
        self.last_thaw_microseconds: tuple[float, ...] = ()
        self._shared_memory = SharedMemoryWatch() if "memory" not in delegation.folders else None

    @classmethod
    async def start(cls, broker: socket.socket, delegation: cgroups.Delegation, guest: str) -> Machine:
        try:
            syscalls.check_clone3()  # before the first thread
        except OSError as error:
            raise hints.refused(f"cannot start an engine: {error.strerror}") from error
        door = Broker(broker)
        holder = await Holder.start(door, guest)
        walks = Walks()
        return cls(holder, door, PodMaker(holder, door, delegation, _PODS_READY, walks), delegation, walks)

    def when_lost(self, callback: Callable[[str], None]) -> None:
        self._holder.lost.add_done_callback(lambda _: callback("the holder of the sandboxes' namespaces ended"))

    def sweep_faults(self) -> None:
        """For tests: the first fork fails at its first step, the next at its second, and so on."""
        _core.sweep_faults()

    # Templates

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

    async def _forget(self, frozen: FrozenTemplate) -> bool:
        """True when no sandbox can be made from it any more, which is not kept then."""
        if await asyncio.get_running_loop().run_in_executor(self._tracer, _core.usable, frozen.snapshot):
            return False
        task = self._templates.get(frozen.spec)
        if task is not None and task.done() and task.result() is frozen:
            del self._templates[frozen.spec]
            await frozen.close(self._tracer)
        return True

    # Sandboxes from templates

    async def create(
        self,
        template: TemplateSpec,
        limits: Limits,
        mounts: Sequence[MountSpec],
        prepare: Prepare | None = None,
    ) -> Body:
        """A sandbox: one that was thawed ahead of time, or a new one. ``prepare`` is done ahead, or not at all."""
        key = Kind(template, limits, prepare)
        self._asked_at = asyncio.get_running_loop().time()
        # The kind that was asked for last comes last. Others make room: whoever asks for ever new limits gets no more.
        ready = self._ready[key] = self._ready.pop(key) if key in self._ready else _Waiting()
        ready.used = self._asked_at
        self._clear_out()
        while ready.bodies and not mounts:
            body = ready.bodies.pop()
            if not body.death.done():
                self._hits += 1
                self._refill(key)
                return body
            await body.close()
        self._misses += 1
        try:
            body = await self._make(template, limits, mounts)
        except LimitReached:
            if not await self._maker.give_up_ready():
                raise
            body = await self._make(template, limits, mounts)
        if not mounts and key in self._ready:
            self._refill(key)
        return body

    def _refill(self, key: Kind) -> None:
        if not self._closed and (key not in self._refills or self._refills[key].done()):
            self._refills[key] = asyncio.create_task(self._fill(key))

    def _clear_out(self) -> None:
        """Close what waits for kinds that nobody has asked for in a while."""
        for key in list(self._ready)[:-_KINDS_READY]:
            self._drop(key)
        if not self._closed and (self._tidying is None or self._tidying.done()):
            self._tidying = asyncio.create_task(self._tidy())

    async def _tidy(self) -> None:
        """Until only the last kind is left: whoever asks for that again soon is served at once."""
        while len(self._ready) > 1:
            await asyncio.sleep(UNUSED_SECONDS / 4)
            for key in list(self._ready)[:-1]:
                if asyncio.get_running_loop().time() - self._ready[key].used >= UNUSED_SECONDS:
                    self._drop(key)

    def _drop(self, key: Kind) -> None:
        self._discard_ahead(Ahead([], [], None), self._ready.pop(key).bodies)
        self._refills = {key: task for key, task in self._refills.items() if key in self._ready or not task.done()}

    async def _give_up_ready(self) -> bool:
        """The host has no room: close all that was thawed ahead. Whether that was anything."""
        bodies = [body for waiting in self._ready.values() for body in waiting.bodies]
        for waiting in self._ready.values():
            waiting.bodies.clear()
        await asyncio.gather(*(body.close() for body in bodies), return_exceptions=True)
        return bool(bodies)

    async def _fill(self, key: Kind) -> None:
        """Thaw ahead for whoever asks next for the same kind."""
        # What cannot be made ahead is tried again, and told, when somebody asks for it.
        with contextlib.suppress(Exception):
            while key in self._ready and len(self._ready[key].bodies) < _SANDBOXES_READY and not self._closed:
                await self._maker.pool.wait_until_idle()
                if self._maker.pool.crowded:
                    return
                body = await self._make(key.template, key.limits, ())
                if key.prepare is not None:
                    await self._prepare(body, key.prepare)
                if key not in self._ready:  # others were asked for meanwhile
                    await body.close()
                    return
                self._ready[key].bodies.append(body)

    async def _prepare(self, body: Body, prepare: Prepare) -> None:
        """When nobody has asked for a sandbox for a moment: whoever makes many of them is not held up by it."""
        try:
            while (quiet := asyncio.get_running_loop().time() - self._asked_at) < _QUIET_SECONDS:
                await asyncio.sleep(_QUIET_SECONDS - quiet)
            body.prepared = await prepare(body)
        except BaseException:
            await body.close()
            raise

    async def _make(self, template: TemplateSpec, limits: Limits, mounts: Sequence[MountSpec]) -> Body:
        """A pod, and the template thawed into it."""
        await self._frozen(template)
        pod = await self._maker.take(template.interpreter, limits, mounts)
        try:
            life = await self._wake(template, pod)
        except BaseException:
            await pod.close()
            raise
        body = Body(template, tuple(mounts), pod, life, self._wake, self._delegation, self._surroundings)
        return self._watched(body)

    async def _wake(self, template: TemplateSpec, pod: Pod) -> Life:
        """The template thawed into an empty pod; one that the host's kernel has killed meanwhile is booted again."""
        frozen = await self._frozen(template)
        try:
            return await self._thaw_template(frozen, pod)
        except RametError:
            if not await self._forget(frozen):
                raise
        return await self._thaw_template(await self._frozen(template), pod)

    async def _thaw_template(self, frozen: FrozenTemplate, pod: Pod) -> Life:
        pid = next(number for number in self._pids if number not in frozen.thread_ids)
        calls = frozen.calls(resource_limits(pod.limits, self._delegation))
        plan = Plan(pod, pid, calls, (), self._maker.group_count(), False, False, _THAW_SECONDS, self._kills(pod))
        try:
            return await self._carry_out(plan, frozen.snapshot, frozenset())
        except _core.FreezeError as error:
            raise failure(f"cannot make a sandbox from template {frozen.spec.name!r}", error, RametError) from error

    async def _carry_out(self, plan: Plan, snapshot: _core.Snapshot, lineage: frozenset[int]) -> Life:
        work = asyncio.get_running_loop().run_in_executor(self._tracer, plan.carry_out, snapshot)
        return self._life(await finish(work, _end_thawed), plan, snapshot, lineage)

    def _life(self, made: Thawed, plan: Plan, snapshot: _core.Snapshot, lineage: frozenset[int]) -> Life:
        shadow, shadow_pidfd, repl, repl_pidfd, spent = made
        self.last_thaw_microseconds = spent
        plan.pod.let_go()
        return Life(
            shadow, shadow_pidfd, None, repl, repl_pidfd, plan.pid, _core.syscall_at(snapshot), lineage | {plan.pid},
            asyncio.get_running_loop().create_future(), plan.kills_before,
        )  # fmt: skip

    # Sandboxes from sandboxes

    async def fork(self, body: Body, count: int, keep_pid: bool, on_resumed: Callable[[], None]) -> Forked:
        """So many copies of a sandbox, or none."""
        self._maker.pool.expect(PodKind(body.template.interpreter, body.pod.limits), count)
        with self._maker.pool.undisturbed():
            handover = Handover(on_resumed)
            planning = asyncio.create_task(self._plan_ahead(handover, body, keep_pid, count))
            try:
                frozen, batch = await self._freeze(body, keep_pid, count, handover.freeze_and_thaw)
            except BaseException:
                handover.read.cancel()
                await self._discard(await finish(planning, self._discard_ahead), [])
                raise
            try:
                ahead = await finish(planning, self._discard_ahead)
                bodies = await self._thaw_all(frozen, count, ahead, batch)
            finally:
                await frozen.close()
        return Forked(bodies, frozen.pause_seconds, frozen.file_bytes)

    async def freeze(self, body: Body, keep_pid: bool) -> Frozen:
        frozen, _ = await self._freeze(
            body, keep_pid, 1, lambda subject: Batch(live.freeze(subject, lambda _: None), [], None)
        )
        return frozen

    async def thaw(self, frozen: Frozen, limits: Limits | None, mounts: Sequence[MountSpec] | None) -> Body:
        chosen = frozen.mounts if mounts is None else tuple(mounts)
        pod = await self._pod_for(frozen, frozen.limits if limits is None else limits, chosen)
        return await self._thaw_into(frozen, pod, chosen)

    async def _freeze(
        self, body: Body, keep_pid: bool, copies: int, work: Callable[[Subject], Batch]
    ) -> tuple[Frozen, Batch]:
        async with body.being_frozen():
            return await self._freeze_held(body, keep_pid, copies, work)

    async def _freeze_held(
        self, body: Body, keep_pid: bool, copies: int, work: Callable[[Subject], Batch]
    ) -> tuple[Frozen, Batch]:
        subject, lineage = body.subject(), body.life.lineage
        claim = body.room.claim(copies)
        try:
            job = asyncio.get_running_loop().run_in_executor(self._tracer, work, subject)
            try:
                batch = await finish(job, self._discard_batch)
            finally:
                subject.close()
        except BaseException as error:
            claim.release()
            self._serve_stragglers()
            if isinstance(error, _core.FreezeError):
                raise failure("the sandbox could not be frozen", error) from error
            raise
        taken = batch.taken
        if taken.stragglers:
            self._serve_stragglers()
        body.life.timed_calls = taken.recipes.timed_calls
        kept_pid = body.pid if keep_pid else None
        frozen = Frozen(taken, body.template, body.mounts, lineage, kept_pid, claim, self._tracer)
        body.keep(frozen)
        return frozen, batch

    def _discard_batch(self, batch: Batch) -> None:
        for made in batch.made:
            _end_thawed(made)
        self._tracer.submit(live.discard, batch.taken)

    async def _plan_ahead(self, handover: Handover, body: Body, keep_pid: bool, count: int) -> Ahead:
        """As many copies as there are pods ready, planned while the memory is copied; pods for the others are begun."""
        plans: list[Plan] = []
        pods: list[asyncio.Task[Pod]] = []
        taken: Pod | None = None
        error: Exception | None = None
        try:
            recipes = await handover.read
            interpreter, limits = body.template.interpreter, body.pod.limits
            kept_pid = body.pid if keep_pid else None
            while len(plans) < count and recipes.image.is_empty:
                pod = self._maker.take_ready(interpreter, limits, body.mounts)
                if pod is None:
                    break
                taken = pod
                consume, more = _turn(len(plans) + 1, count)
                plans.append(self._plan(recipes, pod, body.life.lineage, kept_pid, consume, more))
                taken = None
                handover.give(plans[-1])
            for _ in range(count - len(plans)):
                work = self._maker.take(interpreter, limits, body.mounts, recipes.image)
                pods.append(asyncio.create_task(work))
        except asyncio.CancelledError:
            pass  # the freeze failed
        except Exception as cause:
            error = cause
        finally:
            handover.give(None)
        if taken is not None:
            await taken.close()
        return Ahead(plans, pods, error)

    def _plan(
        self, recipes: Recipes, pod: Pod, lineage: frozenset[int], kept_pid: int | None, consume: bool, more: bool
    ) -> Plan:
        taken = recipes.taken_pids | lineage
        pid = kept_pid or next(number for number in self._pids if number not in taken)
        return Plan(
            pod=pod,
            pid=pid,
            calls=recipes.calls(pid, pod.limits, resource_limits(pod.limits, self._delegation)),
            children=recipes.process.children,
            groups=self._maker.group_count(),
            consume=consume,
            more=more,
            seconds=_THAW_SECONDS,
            kills_before=self._kills(pod),
            greeting=guest.wake(),
        )

    async def _thaw_all(self, frozen: Frozen, count: int, ahead: Ahead, batch: Batch) -> list[Body]:
        """What was thawed at once, then the others as their pods come. The last takes the snapshot's shadow."""
        bodies: list[Body] = []
        try:
            for plan, made in zip(ahead.plans, batch.made, strict=False):
                life = self._life(made, plan, frozen.snapshot, frozen.lineage)
                bodies.append(self._body(frozen, plan.pod, life, frozen.mounts))
            error = batch.error or ahead.error
            if error is not None:
                raise failure(_NOT_THAWED, error) if isinstance(error, _core.FreezeError) else error
            for plan in ahead.plans[len(batch.made) :]:
                bodies.append(await self._thaw_planned(frozen, plan, frozen.mounts))
            for pod in asyncio.as_completed(ahead.pods):
                consume, more = _turn(len(bodies) + 1, count)
                bodies.append(await self._thaw_into(frozen, await pod, frozen.mounts, consume, more))
        except BaseException:
            await self._discard(ahead, bodies)
            raise
        return bodies

    def _discard_ahead(self, ahead: Ahead, bodies: Sequence[Body] = ()) -> None:
        work = asyncio.create_task(self._discard(ahead, bodies))
        self._discards.add(work)
        work.add_done_callback(self._discards.discard)

    async def _discard(self, ahead: Ahead, bodies: Sequence[Body]) -> None:
        made = await asyncio.gather(*ahead.pods, return_exceptions=True)
        pods = [*(plan.pod for plan in ahead.plans), *(pod for pod in made if isinstance(pod, Pod))]
        await asyncio.gather(*(body.close() for body in bodies), return_exceptions=True)
        await asyncio.gather(*(pod.close() for pod in pods), return_exceptions=True)

    async def _pod_for(self, frozen: Frozen, limits: Limits, mounts: tuple[MountSpec, ...]) -> Pod:
        return await self._maker.take(frozen.template.interpreter, limits, mounts, frozen.recipes.image)

    async def _thaw_into(
        self, frozen: Frozen, pod: Pod, mounts: tuple[MountSpec, ...], consume: bool = False, more: bool = False
    ) -> Body:
        """The pod is the body's, or closed."""
        try:
            plan = self._plan(frozen.recipes, pod, frozen.lineage, frozen.kept_pid, consume, more)
        except BaseException:
            await pod.close()
            raise
        return await self._thaw_planned(frozen, plan, mounts)

    async def _thaw_planned(self, frozen: Frozen, plan: Plan, mounts: tuple[MountSpec, ...]) -> Body:
        try:
            if frozen.closed:
                raise ForkFailed("the snapshot was closed")
            life = await self._carry_out(plan, frozen.snapshot, frozen.lineage)
        except BaseException as error:
            await plan.pod.close()
            if isinstance(error, _core.FreezeError):
                raise failure(_NOT_THAWED, error) from error
            raise
        return self._body(frozen, plan.pod, life, mounts)

    def _body(self, frozen: Frozen, pod: Pod, life: Life, mounts: tuple[MountSpec, ...]) -> Body:
        claim = frozen.claim.hold()
        body = Body(frozen.template, mounts, pod, life, self._wake, self._delegation, self._surroundings, claim)
        return self._watched(body)

    def _watched(self, body: Body) -> Body:
        if self._shared_memory is not None:
            body.watch(self._shared_memory)
        return body

    def _serve_stragglers(self) -> None:
        """After a failed freeze: threads that had not stopped in time are still seized, and let go when they stop."""
        if self._stragglers is None or self._stragglers.done():
            self._stragglers = asyncio.create_task(self._serve_until_none())

    async def _serve_until_none(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed and await loop.run_in_executor(self._tracer, _core.serve_stragglers) > 0:
            await asyncio.sleep(_STRAGGLER_SECONDS)

    async def diff_files(
        self, one: Body, other: Body, paths: tuple[str, ...] | None, owner: str
    ) -> Sequence[FileChange]:
        return await self._walks.run(owner, lambda stop: diff_files(one.pod, other.pod, paths, stop))

    async def open_folder(self, path: str, writable: bool) -> int:
        """A folder of the host as a detached mount; the descriptor is the caller's."""
        return await self._broker.open(path, "w" if writable else "r")

    # The end

    async def close(self) -> None:
        self._closed = True
        for task in (self._stragglers, self._tidying):
            if task is not None:
                task.cancel()
        for refill in self._refills.values():
            refill.cancel()
        await asyncio.gather(*self._refills.values(), return_exceptions=True)
        bodies = [body for waiting in self._ready.values() for body in waiting.bodies]
        await asyncio.gather(*(body.close() for body in bodies), return_exceptions=True)
        await self._maker.close()
        for booting in self._templates.values():
            booting.cancel()
        done = await asyncio.gather(*self._templates.values(), return_exceptions=True)
        for frozen in done:
            if isinstance(frozen, FrozenTemplate):
                await frozen.close(self._tracer)
        if self._shared_memory is not None:
            self._shared_memory.close()
        self._holder.close()
        self._walks.close()
        self._tracer.shutdown(wait=True)

    def _kills(self, pod: Pod) -> int:
        """For want of memory, so far, where a REPL in this pod is counted."""
        if "memory" in self._delegation.folders and pod.group is not None:
            return pod.group.out_of_memory_kills()
        return self._surroundings.kills()

    def facts(self) -> dict[str, object]:
        return {
            "cgroup_version": self._delegation.version,
            "cgroup_controllers": sorted(self._delegation.folders),
            "pool_hits": self._hits,
            "pool_misses": self._misses,
            "pool_ready": sum(len(waiting.bodies) for waiting in self._ready.values()),
            "pool_pods": len(self._maker.pool),
            "last_thaw_microseconds": list(self.last_thaw_microseconds),
        }


def _end_thawed(made: Thawed) -> None:
    """Nobody waits for this sandbox any more: both of its processes go, and their pidfds."""
    _, shadow_pidfd, _, repl_pidfd, _ = made
    end_process(repl_pidfd)
    end_process(shadow_pidfd)


def _turn(number: int, count: int) -> tuple[bool, bool]:
    """Whether the copy of this number takes the snapshot's shadow, and whether the next needs a copy of it."""
    return number == count, number < count - 1
