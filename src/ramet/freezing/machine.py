"""The machine: makes sandboxes by thawing templates and snapshots into pods. The engine decides, this carries out.

create  = one that was thawed ahead, or a pod and the template thawed into it
recover = the same pod, emptied, and the template thawed into it again
thaw    = a pod and a snapshot thawed into it
fork    = freeze, and as many thaws as copies were asked for
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ramet.errors import LimitReached, RametError
from ramet.freezing import _core, live
from ramet.freezing.ancestry import Ancestry
from ramet.freezing.body import Body, Life, PreparedPart
from ramet.freezing.failures import failure
from ramet.freezing.forking import Batch, Handover
from ramet.freezing.frozen import Frozen
from ramet.freezing.images.images import Images
from ramet.freezing.images.moving.carrier import Receive
from ramet.freezing.images.points import PointImages
from ramet.freezing.images.sandboxes import SandboxImages
from ramet.freezing.images.stored.store import ImageStore, StoreRoom
from ramet.freezing.images.templates import TemplateImages
from ramet.freezing.live import Subject
from ramet.freezing.memory_allowance import Claim
from ramet.freezing.shared_memory import SharedMemoryWatch
from ramet.freezing.template import Templates, template_image_name
from ramet.freezing.thawing import Plan, Thawer, end_thawed
from ramet.isolation import hints
from ramet.isolation.files.ancestors import common_ancestor
from ramet.isolation.files.differences import diff_files
from ramet.isolation.files.journals import JournalFile, JournalLines
from ramet.isolation.files.layers import FileImage
from ramet.isolation.files.taking import FileTaking
from ramet.isolation.files.three_way import plan_files
from ramet.isolation.files.walks import Walks
from ramet.isolation.holder import Broker, Holder
from ramet.isolation.kernel import cgroups, syscalls
from ramet.isolation.pods import Pod, PodKind, PodMaker
from ramet.isolation.pool import Pool, PoolBounds
from ramet.isolation.thread_work import finish
from ramet.protocol.import_terms import ImportTerms
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.differences import FileChange
from ramet.protocol.values.specs import Limits, MountSpec, TemplateSpec

_PODS_READY = 4  # empty pods, for forks, for sandboxes with other limits and for the ones below
# Thawed ahead, for each kind that was asked for: a waiting one costs about a megabyte.
_SANDBOXES_READY = PoolBounds(
    of_a_kind=2, kinds=8, in_all=16, of_a_kind_expected=2, enough=0, refill_after_seconds=0.0
)  # fmt: skip
_QUIET_SECONDS = 0.01  # a caller that makes several in a row asks for the next one sooner
_STRAGGLER_SECONDS = 0.05
_JOURNALS_AT_MOST = 100_000
_IMAGES_ROOM = StoreRoom(templates=4 << 30, saved=64 << 30)


# Done to a sandbox of its kind that was thawed ahead.
Prepare = Callable[[Body], Awaitable[PreparedPart]]


class SandboxKind(NamedTuple):
    """Sandboxes that can stand in for one another."""

    template: TemplateSpec
    limits: Limits
    prepare: Prepare | None = None


class Ahead(NamedTuple):
    """Plans and pods for the copies of a fork, made while its parent was being frozen."""

    plans: list[Plan]
    pods: list[asyncio.Task[Pod]]
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Forked:
    """The copies that one fork made, and its cost."""

    bodies: list[Body]
    pause_seconds: float
    file_bytes: int


class Machine:
    """Owner of the holder, the templates and the pods of one engine."""

    def __init__(
        self,
        holder: Holder,
        broker: Broker,
        maker: PodMaker,
        delegation: cgroups.Delegation,
        walks: Walks,
        guest: str,
        images: str | None,
    ) -> None:
        self._holder = holder
        self._broker = broker
        self._maker = maker
        self._delegation = delegation
        self._surroundings = cgroups.Surroundings(delegation)
        # ptrace binds a stopped task to one thread: this one.
        self._tracer = ThreadPoolExecutor(1, thread_name_prefix="ramet-tracer")
        self._walks = walks
        self._images = None if images is None else Images(images, guest, holder, broker, self._tracer, _IMAGES_ROOM)
        self._templates = Templates(
            holder, maker, self._tracer, None if self._images is None else TemplateImages(self._images)
        )
        self._saved = (
            None
            if self._images is None
            else SandboxImages(self._images, maker, self._tracer, lambda spec: template_image_name(spec, guest))
        )
        self._points = None if self._images is None or self._saved is None else PointImages(self._images, self._saved)
        self._thawer = Thawer(self._tracer, delegation, self._surroundings)
        self._ready: Pool[SandboxKind, Body] = Pool(self._make_ahead, _SANDBOXES_READY, maker.pool.load)
        maker.on_crowded = self._ready.give_up
        self._asked_at = 0.0  # for a sandbox, the last time
        self._stragglers: asyncio.Task[None] | None = None
        self._discards: set[asyncio.Task[None]] = set()
        self._closed = False
        self._hits = 0
        self._misses = 0
        self._shared_memory = SharedMemoryWatch() if "memory" not in delegation.folders else None

    @classmethod
    async def start(
        cls, broker: socket.socket, delegation: cgroups.Delegation, guest: str, images: str | None = None
    ) -> Machine:
        """``images``: the owner's folder for images of templates; None: they are not kept."""
        try:
            syscalls.check_clone3()  # before the first thread
        except OSError as error:
            raise hints.refused(f"cannot start an engine: {error.strerror}") from error
        broker_client = Broker(broker)
        holder = await Holder.start(broker_client, guest)
        walks = Walks()
        maker = PodMaker(holder, broker_client, delegation, _PODS_READY, walks)
        return cls(holder, broker_client, maker, delegation, walks, guest, images)

    def when_lost(self, callback: Callable[[str], None]) -> None:
        self._holder.lost.add_done_callback(lambda _: callback("the holder of the sandboxes' namespaces ended"))

    def sweep_faults(self) -> None:
        """For tests: the first fork fails at its first step, the next at its second, and so on."""
        _core.sweep_faults()

    # Sandboxes from templates

    async def template(self, spec: TemplateSpec) -> None:
        """Boot and freeze it unless that was done; concurrent calls share one boot."""
        await self._templates.get(spec)

    async def create(
        self,
        template: TemplateSpec,
        limits: Limits,
        mounts: Sequence[MountSpec],
        prepare: Prepare | None = None,
    ) -> Body:
        """A sandbox: one that was thawed ahead of time, or a new one. ``prepare`` is done ahead, or not at all."""
        kind = SandboxKind(template, limits, prepare)
        self._asked_at = asyncio.get_running_loop().time()
        # Without an await: a caller for whom one waits gets it in the same step of the loop.
        body = None if mounts else self._ready.take(kind)
        if body is not None:
            self._hits += 1
            return body
        self._misses += 1
        try:
            body = await self._make(template, limits, mounts)
        except LimitReached:
            if not await self._maker.give_up_ready():
                raise
            body = await self._make(template, limits, mounts)
        if not mounts:
            self._ready.refill(kind)
        return body

    async def _make(self, template: TemplateSpec, limits: Limits, mounts: Sequence[MountSpec]) -> Body:
        await self._templates.get(template)  # before the pod: none waits for a boot
        pod = await self._maker.take(template.interpreter, limits, mounts)
        return await self._inhabit(pod, template, tuple(mounts), self._wake(template, pod), None)

    async def _make_ahead(self, kind: SandboxKind) -> Body:
        """One for the pool, prepared when no caller has asked for a sandbox for a moment: that would slow it down."""
        body = await self._make(kind.template, kind.limits, ())
        if kind.prepare is not None:
            async with contextlib.AsyncExitStack() as undo:
                undo.push_async_callback(body.close)
                while (quiet := asyncio.get_running_loop().time() - self._asked_at) < _QUIET_SECONDS:
                    await asyncio.sleep(_QUIET_SECONDS - quiet)
                body.prepared = await kind.prepare(body)
                undo.pop_all()
        return body

    async def _wake(self, template: TemplateSpec, pod: Pod) -> Life:
        """The template thawed into an empty pod.

        One that the host's kernel has killed meanwhile is made again, and so is one whose image cannot be thawed.
        """
        frozen = await self._templates.get(template)
        try:
            return await self._thawer.thaw_into(frozen, pod)
        except RametError as error:
            dead = await self._templates.forget_dead(frozen)
            may_be_image = not isinstance(error, LimitReached)
            if not dead and not (may_be_image and await self._templates.forget_poured(frozen)):
                raise
        return await self._thawer.thaw_into(await self._templates.get(template), pod)

    # Sandboxes from snapshots

    async def thaw(self, frozen: Frozen, limits: Limits | None, mounts: Sequence[MountSpec] | None) -> Body:
        """A sandbox in the state of a snapshot. None: limits and mounts as the sandbox that was frozen had."""
        chosen = frozen.mounts if mounts is None else tuple(mounts)
        interpreter, image = frozen.template.interpreter, frozen.recipes.image
        pod = await self._maker.take(interpreter, frozen.limits if limits is None else limits, chosen, image)
        pod.files.descend_from(image)
        with frozen.being_thawed():
            return await self._inhabit(pod, frozen.template, chosen, self._thawer.thaw_into(frozen, pod), frozen.claim)

    async def _inhabit(
        self,
        pod: Pod,
        template: TemplateSpec,
        mounts: tuple[MountSpec, ...],
        waking: Awaitable[Life],
        claim: Claim | None,
    ) -> Body:
        """The pod becomes a sandbox's when its REPL is awake; it is closed if that fails."""
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(pod.close)
            life = await waking
            undo.pop_all()
        return self._body(pod, template, mounts, life, claim)

    def _body(
        self, pod: Pod, template: TemplateSpec, mounts: tuple[MountSpec, ...], life: Life, claim: Claim | None
    ) -> Body:
        held = claim.hold() if claim is not None else None
        body = Body(template, mounts, pod, life, self._wake, self._delegation, self._surroundings, held)
        if self._shared_memory is not None:
            body.watch(self._shared_memory)
        return body

    # Sandboxes from sandboxes

    async def fork(self, body: Body, count: int, keep_pid: bool, on_resumed: Callable[[], None]) -> Forked:
        """This many copies of a sandbox, or none. Raises ForkFailed or LimitReached."""
        self._maker.pool.expect(PodKind(body.template.interpreter, body.pod.limits), count)
        with self._maker.pool.load.serving():
            handover = Handover(on_resumed)
            # A task, so that the loop plans while the tracer's thread waits for the kernel to copy the memory.
            planning = asyncio.create_task(self._plan_ahead(handover, body, keep_pid, count))
            async with contextlib.AsyncExitStack() as undo:
                undo.push_async_callback(self._give_up_plans, handover, planning)
                frozen, batch = await self._freeze(body, keep_pid, count, handover.freeze_and_thaw)
                undo.pop_all()
            try:
                ahead = await finish(planning, self._discard_soon)
                bodies = await self._thaw_all(frozen, count, ahead, batch)
            finally:
                await frozen.close()
        return Forked(bodies, frozen.pause_seconds, frozen.file_bytes)

    async def freeze(self, body: Body, keep_pid: bool, stay_stopped: bool = False) -> Frozen:
        """A snapshot of a sandbox, which goes on, unless it is to stay stopped. Raises ForkFailed or LimitReached."""

        def work(subject: Subject) -> Batch:
            return Batch(live.freeze(subject, lambda _: None, stay_stopped), [], None)

        frozen, _ = await self._freeze(body, keep_pid, 1, work)
        return frozen

    async def _freeze(
        self, body: Body, keep_pid: bool, copies: int, work: Callable[[Subject], Batch]
    ) -> tuple[Frozen, Batch]:
        async with body.being_frozen():
            with contextlib.ExitStack() as always, contextlib.ExitStack() as undo:
                subject, lineage, ancestry = body.subject(), body.life.lineage, body.life.ancestry
                always.callback(subject.close)
                claim = body.room.claim(copies)
                undo.callback(self._serve_stragglers)
                undo.callback(claim.release)
                job = asyncio.get_running_loop().run_in_executor(self._tracer, work, subject)
                try:
                    # A caller that is cancelled waits for the thread: it uses the pidfds of the subject to the end.
                    batch = await finish(job, self._discard_batch)
                except _core.FreezeError as error:
                    raise failure("the sandbox could not be frozen", error) from error
                undo.pop_all()
            taken = batch.taken
            if taken.stragglers:
                self._serve_stragglers()
            body.life.timed_calls = taken.recipes.timed_calls
            frozen = Frozen(
                taken.snapshot,
                taken.recipes,
                body.template,
                taken.recipes.limits,
                self._tracer,
                mounts=body.mounts,
                lineage=lineage,
                kept_pid=body.pid if keep_pid else None,
                pause_seconds=taken.pause_seconds,
                claim=claim,
                ancestry=Ancestry(ancestry),
            )
            # Before ``being_frozen`` ends: a body that closes right after it must know the shadow in its groups.
            body.keep(frozen)
            return frozen, batch

    def _discard_batch(self, batch: Batch) -> None:
        for made in batch.made:
            end_thawed(made)
        self._tracer.submit(live.discard, batch.taken)

    async def _plan_ahead(self, handover: Handover, body: Body, keep_pid: bool, count: int) -> Ahead:
        """As many copies as there are pods ready, planned while the memory is copied; pods for the others are begun."""
        plans: list[Plan] = []
        pods: list[asyncio.Task[Pod]] = []
        unplanned: Pod | None = None
        error: Exception | None = None
        try:
            recipes = await handover.read
            interpreter, limits = body.template.interpreter, body.pod.limits
            kept_pid = body.pid if keep_pid else None
            while len(plans) < count and recipes.image.is_empty:
                pod = self._maker.take_ready(interpreter, limits, body.mounts)
                if pod is None:
                    break
                unplanned = pod
                consume, more = _shadow_of(len(plans) + 1, count)
                plans.append(self._thawer.plan(recipes, pod, body.life.lineage, kept_pid, consume, more))
                unplanned = None
                handover.give(plans[-1])
            for _ in range(count - len(plans)):
                work = self._maker.take(interpreter, limits, body.mounts, recipes.image)
                pods.append(asyncio.create_task(work))
        except asyncio.CancelledError:
            pass  # of ``handover.read``: the freeze failed
        except Exception as cause:
            error = cause
        finally:
            handover.give(None)  # in any case: the tracer's thread waits for it
        if unplanned is not None:
            await unplanned.close()
        return Ahead(plans, pods, error)

    async def _thaw_all(self, frozen: Frozen, count: int, ahead: Ahead, batch: Batch) -> list[Body]:
        """The copies that were thawed with the freeze, then the others as their pods come."""
        bodies: list[Body] = []

        def add(pod: Pod, life: Life) -> None:
            pod.files.descend_from(frozen.recipes.image)
            bodies.append(self._body(pod, frozen.template, frozen.mounts, life, frozen.claim))

        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._discard, ahead, bodies)
            for plan, made in zip(ahead.plans, batch.made, strict=False):
                add(plan.pod, self._thawer.life(frozen, plan, made))
            error = batch.error or ahead.error
            if error is not None:
                raise frozen.recipes.failure(error) if isinstance(error, _core.FreezeError) else error
            for plan in ahead.plans[len(batch.made) :]:
                add(plan.pod, await self._thawer.carry_out(frozen, plan))
            for coming in asyncio.as_completed(ahead.pods):
                pod = await coming
                consume, more = _shadow_of(len(bodies) + 1, count)
                add(pod, await self._thawer.thaw_into(frozen, pod, consume, more))
            undo.pop_all()
        return bodies

    async def _give_up_plans(self, handover: Handover, planning: asyncio.Task[Ahead]) -> None:
        """The freeze failed: the planning task may still wait for what is read of the parent."""
        handover.read.cancel()
        await self._discard(await finish(planning, self._discard_soon), [])

    def _discard_soon(self, ahead: Ahead) -> None:
        work = asyncio.create_task(self._discard(ahead, []))
        self._discards.add(work)  # the loop itself keeps only a weak reference
        work.add_done_callback(self._discards.discard)

    async def _discard(self, ahead: Ahead, bodies: Sequence[Body]) -> None:
        """Close the copies of a fork that failed, and all pods that were meant for them; closing twice is harmless."""
        made = await asyncio.gather(*ahead.pods, return_exceptions=True)
        pods = [*(plan.pod for plan in ahead.plans), *(pod for pod in made if isinstance(pod, Pod))]
        # Bodies first: a pod whose REPL still runs does not end.
        await asyncio.gather(*(body.close() for body in bodies), return_exceptions=True)
        await asyncio.gather(*(pod.close() for pod in pods), return_exceptions=True)

    def _serve_stragglers(self) -> None:
        """After a failed freeze: threads that had not stopped in time are still seized, and let go when they stop."""
        if self._stragglers is None or self._stragglers.done():
            self._stragglers = asyncio.create_task(self._serve_until_none())

    async def _serve_until_none(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed and await loop.run_in_executor(self._tracer, _core.serve_stragglers) > 0:
            await asyncio.sleep(_STRAGGLER_SECONDS)

    # Snapshots on disk

    async def save_image(self, frozen: Frozen, name: str, about: Mapping[str, object]) -> int:
        return await self._on_disk().save(frozen, name, about)

    async def load_image(self, name: str) -> tuple[Frozen, Mapping[str, object]] | None:
        return None if self._saved is None else await self._saved.load(name)

    async def open_journal(self, name: str) -> JournalFile:
        """Lock the journal of a sandbox on disk. Raises RametError if another engine has it, or OSError."""
        store = await self._on_disk().store()
        return await finish(asyncio.to_thread(store.journals.open, name), JournalFile.close)

    async def journals(self) -> list[tuple[str, JournalLines, bool]]:
        """All journals: name, contents, and whether an engine has it."""
        if self._saved is None:
            return []
        store = await self._saved.store()
        return await asyncio.to_thread(_journals, store)

    def export_image(self, name: str) -> AsyncGenerator[bytes, None]:
        return self._on_disk().export(name)

    async def import_image(self, receive: Receive, terms: ImportTerms) -> None:
        await self._on_disk().take_in(receive, terms)

    async def image_names(self, prefix: str) -> list[str]:
        return [] if self._images is None else await self._images.names(prefix)

    async def image_bytes(self, owner_part: str) -> int:
        return 0 if self._images is None else await self._images.bytes_of(owner_part)

    async def image_id(self, name: str) -> str | None:
        return None if self._images is None else await self._images.image_id(name)

    async def image_figures(self) -> Mapping[str, object]:
        return {} if self._images is None else await self._images.figures()

    @property
    def keeps_images(self) -> bool:
        return self._saved is not None

    async def forget_image(self, name: str) -> None:
        if self._images is not None:
            await self._images.forget(name)

    async def write_point(
        self, frozen: Frozen, whose: str, about: Mapping[str, object], base: str | None, bytes_at_most: int
    ) -> tuple[str, int]:
        if self._points is None:
            raise RametError("this engine keeps no images on disk")
        return await self._points.write(frozen, whose, about, base, bytes_at_most)

    def stop_writing_point(self) -> None:
        if self._images is not None:
            self._images.give_way()

    async def point_sizes(self) -> Mapping[str, int]:
        return {} if self._points is None else await self._points.sizes()

    def _on_disk(self) -> SandboxImages:
        if self._saved is None:
            raise RametError(
                "this engine keeps no images on disk",
                hint="is RAMET_IMAGES=off set, or ~/.cache/ramet a folder that others can write to?",
            )
        return self._saved

    # The rest

    async def diff_files(
        self, one: Body, other: Body, paths: tuple[str, ...] | None, owner: str
    ) -> Sequence[FileChange]:
        return await self._walks.run(owner, lambda stop: diff_files(one.pod, other.pod, paths, stop))

    async def plan_files(
        self, ours: Body, theirs: Body, wanted: Sequence[str] | None, prefer: str | None, owner: str
    ) -> FileTaking:
        """What one would take of the files of another. Ends soon when cancelled."""
        async with self._ancestor(ours, theirs) as base:
            plan = await self._walks.run(
                owner, lambda stop: plan_files(base, ours.pod, theirs.pod, wanted, prefer, stop)
            )
        return FileTaking(plan, ours.pod, theirs.pod)

    @contextlib.asynccontextmanager
    async def _ancestor(self, one: Body, other: Body) -> AsyncIterator[Pod]:
        """A pod without a REPL, with the files that both have descended from. If those are not known any more, it has
        the files of a fresh sandbox: all that differs then counts as changed by both.
        """
        found = common_ancestor(one.pod.files, other.pod.files)
        image = found if isinstance(found, FileImage) else None
        with image.in_use() if image is not None else contextlib.nullcontext(False) as there:
            interpreter, limits = one.template.interpreter, one.pod.limits
            pod = await self._maker.take(interpreter, limits, (), image if there else None)
            try:
                yield pod
            finally:
                await pod.close()

    async def open_folder(self, path: str, writable: bool) -> int:
        """A folder of the host as a detached mount; the descriptor is the caller's."""
        return await self._broker.open(path, "w" if writable else "r")

    async def close(self) -> None:
        """In the order of use: sandboxes before their pods, both before the templates and the tracer's thread."""
        self._closed = True
        if self._stragglers is not None:
            self._stragglers.cancel()
        await self._ready.close()
        await self._maker.close()
        await self._templates.close()
        if self._points is not None:
            await self._points.close()
        if self._images is not None:
            await self._images.close()
        if self._shared_memory is not None:
            self._shared_memory.close()
        self._holder.close()
        self._walks.close()
        self._tracer.shutdown(wait=True)

    def facts(self) -> dict[str, object]:
        return {
            "cgroup_version": self._delegation.version,
            "cgroup_controllers": sorted(self._delegation.folders),
            "pool_hits": self._hits,
            "pool_misses": self._misses,
            "pool_ready": len(self._ready),
            "pool_pods": len(self._maker.pool),
            "last_thaw_microseconds": list(self._thawer.last_microseconds),
            "images": self._images.facts() if self._images is not None else None,
        }


def _journals(store: ImageStore) -> list[tuple[str, JournalLines, bool]]:
    found = []
    for name in store.journals.names()[:_JOURNALS_AT_MOST]:
        looked = store.journals.look(name)
        if looked is not None:
            found.append((name, *looked))
    return found


def _shadow_of(number: int, count: int) -> tuple[bool, bool]:
    """Whether the copy of this number takes the snapshot's own shadow, and whether the next needs a copy of it."""
    return number == count, number < count - 1
