"""Images of templates: the second engine that needs a template pours it instead of booting it.

No image is ever needed. One that is stale, foreign or broken is removed, and the template boots as if there were none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from ramet.errors import RametError
from ramet.freezing import _core
from ramet.freezing.failures import describe
from ramet.freezing.images import identity
from ramet.freezing.images.manifest import MEMORY_LIMITS, ImageRefused, Manifest
from ramet.freezing.images.memory import Area, kernels_areas
from ramet.freezing.images.pouring import pour_calls
from ramet.freezing.images.store import ImageStore, OpenImage
from ramet.freezing.images.writing import PageWriter, write_memory
from ramet.freezing.process_ends import end_process
from ramet.isolation.files.skeleton import GUEST_FOLDER, LIBRARY_FOLDER, system_folders
from ramet.isolation.holder import Broker, Holder
from ramet.isolation.kernel.seccomp import compile_filter
from ramet.isolation.launch import HELPER
from ramet.isolation.pods import Pod
from ramet.isolation.thread_work import finish
from ramet.protocol.values.specs import TemplateSpec

T = TypeVar("T")
FileRecipe = tuple[int, int, int, bytes]  # number, flags, offset, path

_POUR_SECONDS = 10.0
_QUIET_SECONDS = 0.2  # a caller that waits for its first sandbox comes before the image
_CLOSING_SECONDS = 5.0  # that a write may take when the engine ends: else a short program would never have an image
_STORE_BYTES = 4 << 30
_STAT_PLACES = {  # in /proc/PID/stat, counted from 1
    "start_code": 26, "end_code": 27, "start_stack": 28, "start_data": 45, "end_data": 46, "start_brk": 47,
    "arg_start": 48, "arg_end": 49, "env_start": 50, "env_end": 51,
}  # fmt: skip


class BootedTemplate(NamedTuple):
    """A template that has just booted, for its image."""

    spec: TemplateSpec
    environment: dict[str, str]
    snapshot: _core.Snapshot
    pod: Pod
    open_files: tuple[FileRecipe, ...]
    loaded: Sequence[str]  # files and folders that its modules came from
    began: float  # seconds since 1970


class PouredTemplate(NamedTuple):
    """A template from its image."""

    snapshot: _core.Snapshot
    open_files: tuple[FileRecipe, ...]


class TemplateImages:
    """Pours and writes the images of one machine's templates."""

    def __init__(self, path: str, guest: str, holder: Holder, broker: Broker, tracer: ThreadPoolExecutor) -> None:
        self._path = path
        self._guest = guest
        self._holder = holder
        self._broker = broker
        self._tracer = tracer
        self._opening: asyncio.Task[ImageStore] | None = None
        self._writes: set[asyncio.Task[None]] = set()
        self._writer: PageWriter | None = None
        self._turn = asyncio.Lock()  # one image is written at a time
        self._closing = asyncio.Event()
        self.poured = 0
        self.written = 0
        self.last_error = ""

    async def _store(self) -> ImageStore:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        # Shielded: one of the callers being cancelled must not stop what the others wait for.
        return await asyncio.shield(self._opening)

    async def _open(self) -> ImageStore:
        mount = await self._broker.open(self._path, "w")
        try:
            folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
        finally:
            os.close(mount)
        return await asyncio.to_thread(ImageStore, folder)

    # Pouring

    async def pour(self, spec: TemplateSpec, environment: dict[str, str], pod: Pod) -> PouredTemplate | None:
        """The template, frozen, in a pod that was made for its boot; None where it has to be booted."""
        name = identity.template_name(spec, self._guest, environment)
        try:
            store = await self._store()
            opened = await finish(asyncio.to_thread(_find, store, name), _close_found)
            if opened is None:
                return None
            with opened:
                if opened.manifest.template != spec:
                    raise ImageRefused("the image is of another template")
                snapshot = await self._pour(opened, pod)
                self.poured += 1
                return PouredTemplate(snapshot, opened.manifest.open_files)
        except (RametError, OSError, _core.FreezeError) as error:
            self._note(f"the image of template {spec.name!r} was not used: {_words(error)}")
            await self.forget(spec, environment)
            return None

    async def _pour(self, opened: OpenImage, pod: Pod) -> _core.Snapshot:
        manifest = opened.manifest
        threads, loaded = await asyncio.to_thread(lambda: (opened.part("threads"), opened.part("loaded")))
        shift = identity.clock_shift(manifest)
        # A caller that is cancelled waits for the thread: a process that it makes would have no owner.
        pid = await finish(asyncio.to_thread(self._blank, pod, shift, loaded, opened.pages), _end_blank)
        # The snapshot owns the process from here on, also when this step fails.
        held = self._traced(_core.hold_blank, pid, threads, _POUR_SECONDS)
        snapshot = await finish(held, lambda made: self._tracer.submit(_core.end_snapshot, made))
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._traced, _core.end_snapshot, snapshot)
            calls = pour_calls(manifest, kernels_areas(pid))
            await self._traced(_core.pour, snapshot, calls, _POUR_SECONDS)
            undo.pop_all()
        return snapshot

    async def _traced(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._tracer, work, *arguments)

    def _blank(self, pod: Pod, shift: int, loaded: bytes, pages: Sequence[int]) -> int:
        """An empty process in the pod's tree, if that still shows all files as the image has loaded them."""
        with contextlib.ExitStack() as ours:
            numbers = [self._holder.pidfd, pod.handle.init_pidfd]
            for name, data in (("filter", compile_filter(pod.uncounted)), ("loaded", loaded)):
                numbers.append(os.memfd_create(name, os.MFD_CLOEXEC))
                ours.callback(os.close, numbers[-1])
                os.write(numbers[-1], data)
            words = [*numbers, shift, *pages]
            done = subprocess.run(
                [str(HELPER), "blank", *map(str, words)],
                pass_fds=[*numbers, *pages], env={}, capture_output=True, text=True, errors="replace", check=False,
            )  # fmt: skip
        if done.returncode:
            raise ImageRefused(done.stderr.strip() or "the helper program was ended")
        return int(done.stdout)

    async def forget(self, spec: TemplateSpec, environment: dict[str, str]) -> None:
        """Remove the image of a template, if there is one."""
        with contextlib.suppress(RametError, OSError):
            name = identity.template_name(spec, self._guest, environment)
            await asyncio.to_thread((await self._store()).forget, name)

    # Writing

    def keep_soon(self, booted: BootedTemplate) -> None:
        """Write the image of a template that has just booted, when its first caller has been served."""
        task = asyncio.create_task(self._keep(booted))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _keep(self, booted: BootedTemplate) -> None:
        try:
            async with self._turn:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), _QUIET_SECONDS)
                states = await self._traced(_core.states, booted.snapshot, _POUR_SECONDS)
                store = await self._store()
                writer = self._writer = PageWriter(store.hash_key)
                # A caller that is cancelled waits for the thread, which reads memory of a process that is ended next.
                await finish(asyncio.to_thread(self._write, store, writer, booted, *states), lambda _: None)
                self.written += 1
        except (RametError, OSError, _core.FreezeError) as error:
            self._note(f"the image of template {booted.spec.name!r} was not written: {_words(error)}")

    def _write(
        self,
        store: ImageStore,
        writer: PageWriter,
        booted: BootedTemplate,
        states: bytes,
        heap_end: int,
        actions: bytes,
    ) -> None:
        spec, pid = booted.spec, _core.shadow(booted.snapshot)
        shown = tuple(f"{tree}/" for tree in (*system_folders(), *spec.interpreter.trees, GUEST_FOLDER, LIBRARY_FOLDER))

        def is_systems(area: Area) -> bool:
            return area.name.startswith(shown) and not area.name.endswith(" (deleted)")

        name = identity.template_name(spec, self._guest, booted.environment)
        store.sweep()
        with store.new() as new:
            with contextlib.ExitStack() as always:
                pages, table = new.create("pages"), new.create("hashes")
                always.callback(os.close, table)
                always.callback(os.close, pages)
                written = write_memory(pid, writer, pages, table, is_systems)
                size = os.fstat(pages).st_size
                store.make_room(os.fstat(pages).st_blocks * 512, _STORE_BYTES)
            loaded = identity.loaded_list(booted.pod.root, (*booted.loaded, *written.files), booted.began)
            manifest = Manifest(
                id=new.id,
                template=spec,
                created=time.time(),
                boot=identity.boot_id(),
                monotonic=time.monotonic(),
                page_files=((new.id, size),),
                segments=tuple(written.segments),
                files=tuple(written.files),
                kernels_areas=tuple(written.kernels_areas),
                memory_limits=_memory_limits(pid, heap_end),
                actions=actions,
                open_files=booted.open_files,
                digests=(new.write("threads", states), new.write("loaded", loaded)),
            )
            manifest.check()
            store.commit(new, manifest, name)

    def _note(self, error: str) -> None:
        self.last_error = error

    async def close(self) -> None:
        """Let a write that is under way come to its end, for a moment. Templates are closed after this."""
        self._closing.set()
        if self._writes:
            await asyncio.wait(self._writes, timeout=_CLOSING_SECONDS)
            if self._writer is not None:
                self._writer.stop()
            if self._writes:
                await asyncio.wait(self._writes)
        if self._opening is not None:
            store = (await asyncio.gather(self._opening, return_exceptions=True))[0]
            if isinstance(store, ImageStore):
                store.close()

    def facts(self) -> dict[str, object]:
        return {"folder": self._path, "poured": self.poured, "written": self.written, "last_error": self.last_error}


def _find(store: ImageStore, name: str) -> OpenImage | None:
    image_id = store.find(name)
    if image_id is None:
        return None
    opened = store.read(image_id)
    store.touch(image_id)
    return opened


def _close_found(opened: OpenImage | None) -> None:
    if opened is not None:
        opened.close()


def _end_blank(pid: int) -> None:
    end_process(os.pidfd_open(pid))


def _words(error: Exception) -> str:
    if isinstance(error, _core.FreezeError):
        return describe(error)
    return error.message if isinstance(error, RametError) else str(error)


def _memory_limits(pid: int, heap_end: int) -> tuple[int, ...]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        words = file.read().rpartition(")")[2].split()  # the name of a process may hold anything
    found = {name: int(words[place - 3]) for name, place in _STAT_PLACES.items()}
    found["brk"] = heap_end
    return tuple(found[name] for name in MEMORY_LIMITS)
