"""The machine: makes sandboxes by thawing templates and snapshots into pods. The engine decides, this carries out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ramet.errors import NO_ROOM_ERRNOS, ForkFailed, LimitReached, RametError
from ramet.freezing import _core, live
from ramet.freezing.body import Body, Life
from ramet.freezing.forking import FirstThaw, Handover, Plan
from ramet.freezing.live import Frozen, Recipes, Subject, Taken
from ramet.freezing.processes import end_process
from ramet.freezing.resource_limits import resource_limits
from ramet.freezing.template import FrozenTemplate, boot_template, describe
from ramet.isolation import cgroups
from ramet.isolation.differences import diff_files
from ramet.isolation.holder import Broker, Holder
from ramet.isolation.pods import Pod, PodMaker
from ramet.isolation.threadwork import finish
from ramet.protocol.differences import FileChange
from ramet.protocol.specs import Limits, MountSpec, TemplateSpec

_THAW_SECONDS = 10.0
_PODS_READY = 2  # empty pods, for sandboxes with other limits and for the ones below
_SANDBOXES_READY = 2  # thawed ahead, for each kind that was asked for: a waiting one costs about a megabyte
_REFILL_AFTER_SECONDS = 0.01  # whoever took one is about to use it: making the next at once would slow that down
_FIRST_PID, _LAST_PID = 1000, 30_000
_STRAGGLER_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Forked:
    """What one fork made."""

    bodies: list[Body]
    pause_seconds: float
    file_bytes: int


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
        self._stragglers: asyncio.Task[None] | None = None
        self._closed = False
        self._hits = 0
        self._misses = 0
        self.last_thaw_microseconds: tuple[float, ...] = ()

    @classmethod
    async def start(cls, broker: socket.socket, delegation: cgroups.Delegation, guest: str) -> Machine:
        door = Broker(broker)
        holder = await Holder.start(door, guest)
        return cls(holder, PodMaker(holder, door, delegation, _PODS_READY), delegation)

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
            await self._maker.calm.wait()
            while len(self._ready[key]) < _SANDBOXES_READY and not self._closed:
                self._ready[key].append(await self._make(*key, ()))
                await self._maker.calm.wait()

    async def _make(self, template: TemplateSpec, limits: Limits, mounts: Sequence[MountSpec]) -> Body:
        """A pod, and the template thawed into it."""
        await self._frozen(template)
        pod = await self._maker.take(template.interpreter, limits, mounts)
        try:
            life = await self._wake(template, pod)
        except BaseException:
            await pod.close()
            raise
        return Body(template, tuple(mounts), pod, life, self._wake, self._delegation)

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
        plan = Plan(pod, pid, calls, (), self._maker.group_count(), consume=False, more=False, seconds=_THAW_SECONDS)
        try:
            return await self._carry_out(plan, frozen.snapshot, frozenset())
        except _core.FreezeError as error:
            kind = LimitReached if error.args[1] in NO_ROOM_ERRNOS else RametError
            raise kind(f"cannot make a sandbox from template {frozen.spec.name!r}: {describe(error)}") from error

    async def _carry_out(self, plan: Plan, snapshot: _core.Snapshot, lineage: frozenset[int]) -> Life:
        kills_before = _kills(plan.pod)
        work = asyncio.get_running_loop().run_in_executor(self._tracer, plan.carry_out, snapshot)
        return self._life(await finish(work, _end_thawed), plan, snapshot, lineage, kills_before)

    def _life(
        self, made: _core.Thawed, plan: Plan, snapshot: _core.Snapshot, lineage: frozenset[int], kills_before: int
    ) -> Life:
        shadow, shadow_pidfd, repl, repl_pidfd, spent = made
        self.last_thaw_microseconds = spent
        plan.pod.let_go()
        return Life(
            shadow, shadow_pidfd, None, repl, repl_pidfd, plan.pid, _core.syscall_at(snapshot), lineage | {plan.pid},
            asyncio.get_running_loop().create_future(), kills_before,
        )  # fmt: skip

    # Sandboxes from sandboxes

    async def fork(self, body: Body, count: int, keep_pid: bool, on_resumed: Callable[[], None]) -> Forked:
        """So many copies of a sandbox, or none."""
        self._maker.expect(count)
        with self._maker.undisturbed():
            handover = Handover(on_resumed)
            planning = asyncio.create_task(self._plan_first(handover, body, keep_pid, count))
            try:
                frozen, made = await self._freeze(body, keep_pid, count, handover.freeze_and_thaw)
            except BaseException:
                handover.read.cancel()
                plan = await planning
                if plan is not None:
                    await plan.pod.close()
                raise
            try:
                bodies = await self._thaw_all(frozen, count, await planning, made)
            finally:
                await frozen.close()
        return Forked(bodies, frozen.pause_seconds, frozen.file_bytes)

    async def freeze(self, body: Body, keep_pid: bool) -> Frozen:
        frozen, _ = await self._freeze(body, keep_pid, 1, lambda subject: (live.freeze(subject, lambda _: None), None))
        return frozen

    async def thaw(self, frozen: Frozen, limits: Limits | None, mounts: Sequence[MountSpec] | None) -> Body:
        chosen = frozen.mounts if mounts is None else tuple(mounts)
        pod = await self._pod_for(frozen, frozen.limits if limits is None else limits, chosen)
        return await self._thaw_into(frozen, pod, chosen)

    async def _freeze(
        self, body: Body, keep_pid: bool, copies: int, work: Callable[[Subject], tuple[Taken, FirstThaw]]
    ) -> tuple[Frozen, FirstThaw]:
        subject, lineage = body.subject(), body.life.lineage
        claim = body.room.claim(copies)
        try:
            job = asyncio.get_running_loop().run_in_executor(self._tracer, work, subject)
            taken, made = await finish(job, self._discard_taken)
        except BaseException as error:
            claim.release()
            self._serve_stragglers()
            if isinstance(error, _core.FreezeError):
                kind = LimitReached if error.args[1] in NO_ROOM_ERRNOS else ForkFailed
                raise kind(f"the sandbox could not be frozen: {describe(error)}", hint=_hint(error)) from error
            raise
        if taken.stragglers:
            self._serve_stragglers()
        body.life.timed_calls = taken.recipes.timed_calls
        kept_pid = body.pid if keep_pid else None
        frozen = Frozen(taken, body.template, body.mounts, lineage, kept_pid, claim, self._tracer)
        body.keep(frozen)
        return frozen, made

    def _discard_taken(self, result: tuple[Taken, FirstThaw]) -> None:
        taken, made = result
        if isinstance(made, tuple):
            _end_thawed(made)
        self._tracer.submit(live.discard, taken)

    async def _plan_first(self, handover: Handover, body: Body, keep_pid: bool, count: int) -> Plan | None:
        """The first copy, planned while the memory is copied. None where it cannot be thawed at once."""
        plan = None
        try:
            recipes = await handover.read
            if recipes.image.is_empty:
                pod = self._maker.take_ready(body.template.interpreter, body.pod.limits, body.mounts)
                if pod is not None:
                    kept_pid = body.pid if keep_pid else None
                    plan = self._plan(recipes, pod, body.life.lineage, kept_pid, count == 1, count > 2)
        except asyncio.CancelledError:
            pass  # the freeze failed
        finally:
            handover.give(plan)
        return plan

    def _plan(
        self, recipes: Recipes, pod: Pod, lineage: frozenset[int], kept_pid: int | None, consume: bool, more: bool
    ) -> Plan:
        taken = recipes.taken_pids | lineage
        pid = kept_pid or next(number for number in self._pids if number not in taken)
        calls = recipes.calls(pid, pod.limits, resource_limits(pod.limits, self._delegation))
        groups = self._maker.group_count()
        return Plan(pod, pid, calls, recipes.process.children, groups, consume, more, _THAW_SECONDS)

    async def _thaw_all(self, frozen: Frozen, count: int, plan: Plan | None, made: FirstThaw) -> list[Body]:
        """Pods that are not ready are made while the first copies are thawed. The last takes the snapshot's shadow."""
        bodies: list[Body] = []
        pods: list[asyncio.Task[Pod]] = []
        try:
            if plan is not None:
                bodies.append(await self._first_body(frozen, plan, made))
            missing = count - len(bodies)
            pods = [asyncio.create_task(self._pod_for(frozen, frozen.limits, frozen.mounts)) for _ in range(missing)]
            for pod in asyncio.as_completed(pods):
                number = len(bodies) + 1
                consume, more = number == count, number < count - 1
                bodies.append(await self._thaw_into(frozen, await pod, frozen.mounts, consume, more))
        except BaseException:
            await self._discard(pods, bodies)
            raise
        return bodies

    async def _first_body(self, frozen: Frozen, plan: Plan, made: FirstThaw) -> Body:
        if isinstance(made, _core.FreezeError):
            await plan.pod.close()
            raise _thaw_error(made) from made
        if made is None:
            return await self._thaw_planned(frozen, plan, frozen.mounts)
        life = self._life(made, plan, frozen.snapshot, frozen.lineage, _kills(plan.pod))
        return self._body(frozen, plan.pod, life, frozen.mounts)

    async def _discard(self, pods: list[asyncio.Task[Pod]], bodies: list[Body]) -> None:
        made = await asyncio.gather(*pods, return_exceptions=True)
        await asyncio.gather(*(body.close() for body in bodies), return_exceptions=True)
        await asyncio.gather(*(pod.close() for pod in made if isinstance(pod, Pod)), return_exceptions=True)

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
                raise _thaw_error(error) from error
            raise
        return self._body(frozen, plan.pod, life, mounts)

    def _body(self, frozen: Frozen, pod: Pod, life: Life, mounts: tuple[MountSpec, ...]) -> Body:
        return Body(frozen.template, mounts, pod, life, self._wake, self._delegation, frozen.claim.hold())

    def _serve_stragglers(self) -> None:
        """After a failed freeze: threads that had not stopped in time are still seized, and let go when they stop."""
        if self._stragglers is None or self._stragglers.done():
            self._stragglers = asyncio.create_task(self._serve_until_none())

    async def _serve_until_none(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed and await loop.run_in_executor(self._tracer, _core.serve_stragglers) > 0:
            await asyncio.sleep(_STRAGGLER_SECONDS)

    async def diff_files(self, one: Body, other: Body, paths: tuple[str, ...] | None) -> Sequence[FileChange]:
        return await asyncio.to_thread(diff_files, one.pod, other.pod, paths)

    # The end

    async def close(self) -> None:
        self._closed = True
        if self._stragglers is not None:
            self._stragglers.cancel()
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


def _thaw_error(error: _core.FreezeError) -> RametError:
    kind = LimitReached if error.args[1] in NO_ROOM_ERRNOS else ForkFailed
    return kind(f"a copy of the sandbox could not be thawed: {describe(error)}")


def _kills(pod: Pod) -> int:
    return pod.group.out_of_memory_kills() if pod.group is not None else 0


def _hint(error: _core.FreezeError) -> str | None:
    if "exec" in str(error.args[0]):
        return "the code replaced its interpreter; close this sandbox and make another"
    return None
