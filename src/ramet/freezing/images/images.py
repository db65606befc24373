"""The images of one engine: opens the store, pours images into empty processes, writes images of frozen ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from typing import TypeVar

from ramet.errors import RametError
from ramet.freezing import _core
from ramet.freezing.failures import describe
from ramet.freezing.images import identity, vdso
from ramet.freezing.images.blocks import map_large_blocks
from ramet.freezing.images.manifest import (
    FILLED,
    MEMORY_LIMITS,
    PAGE_FILES_AT_MOST,
    PAGES,
    ImageRefused,
    Manifest,
    Segment,
)
from ramet.freezing.images.memory import Area, highest_mapping, kernels_areas, read_vdso
from ramet.freezing.images.pouring import FIRST_PAGE_FILE, fillings, last_calls, map_calls, stack_can_grow, texts
from ramet.freezing.images.processor import check_processor, processor_here
from ramet.freezing.images.stored.engine_marks import sweep_left
from ramet.freezing.images.stored.figures import figures, keep_error
from ramet.freezing.images.stored.store import ImageStore, NewImage, OpenImage, StoreRoom
from ramet.freezing.images.writing import BasePages, PageWriter, write_memory
from ramet.freezing.process_ends import end_process
from ramet.isolation.files.skeleton import GUEST_FOLDER, LIBRARY_FOLDER, system_folders
from ramet.isolation.holder import Broker, Holder
from ramet.isolation.kernel.seccomp import compile_filter
from ramet.isolation.launch import HELPER
from ramet.isolation.named_locks import NamedLocks
from ramet.isolation.pods import Pod
from ramet.isolation.thread_work import finish
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import TemplateSpec

T = TypeVar("T")
FileRecipe = tuple[int, int, int, bytes]  # number, flags, offset, path
FAILURES = (RametError, OSError, _core.FreezeError)

_POUR_SECONDS = 10.0
_BLANKS_AT_MOST = 8
_ATTEMPTS = 5  # to use an image that others replace all the time
_STALE = 3  # ramet-pod blank: a file has changed
_STAT_PLACES = {  # in /proc/PID/stat, counted from 1
    "start_code": 26, "end_code": 27, "start_stack": 28, "start_data": 45, "end_data": 46, "start_brk": 47,
    "arg_start": 48, "arg_end": 49, "env_start": 50, "env_end": 51,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A frozen process, and all that its image has besides its memory."""

    name: str  # that the image gets
    template: TemplateSpec
    snapshot: _core.Snapshot
    bases: tuple[str, ...] = ()  # names of images that may have many of its pages: the first that can be used is
    gives_way: bool = False  # to images that a caller waits for: it is given up when one of these is to be written
    bytes_at_most: int = 64 << 30  # of memory: a sandbox may have mapped terabytes
    file_bytes: int = 0  # of its files
    # Whether a mapped file is one that only this process had, although every pod shows something there.
    own_files: Callable[[Area], bool] = lambda _: False
    open_files: tuple[FileRecipe, ...] = ()
    imported: bool = False  # it came from elsewhere, and has not run here yet: its contents are not trusted
    # Called when the memory is written, with the files that it maps. Returns the other files of the image, by name.
    parts: Callable[[NewImage, Sequence[str]], Mapping[str, bytes]] = field(default=lambda _new, _files: {})


class Images:
    """Opens the store when it is first needed. One image is written at a time."""

    def __init__(
        self, path: str, guest: str, holder: Holder, broker: Broker, tracer: ThreadPoolExecutor, room: StoreRoom
    ) -> None:
        self.path = path
        self.guest = guest
        self._holder = holder
        self._broker = broker
        self._tracer = tracer
        self._room = room
        self._closed = False
        self._opening: asyncio.Task[ImageStore] | None = None
        self._writer: PageWriter | None = None
        # One write at a time: each makes room in the store by what it finds there, and takes a processor and the disk.
        self._turn = asyncio.Lock()
        self.of_name = NamedLocks()
        self._giving_way: PageWriter | None = None  # a write of a point, ended as soon as a caller wants to write
        self.poured = 0
        self.written = 0
        self.last_error = ""
        self.failures = 0

    async def store(self) -> ImageStore:
        """Raises OSError, ImageRefused, or RametError where the folder cannot be opened."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(self._open())
        # Shielded: one of the callers being cancelled must not stop what the others wait for.
        return await asyncio.shield(self._opening)

    async def _open(self) -> ImageStore:
        mount = await self._broker.open(self.path, "w")
        try:
            folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
        finally:
            os.close(mount)
        store = await asyncio.to_thread(ImageStore, folder)
        await asyncio.to_thread(sweep_left, store)
        return store

    def note(self, what: str, error: Exception, ours: bool = True) -> str:
        """Keep the last failure, for `facts`. Returns its cause in words.

        ``ours`` False: a client's mistake, of which there may be many, and which is not to hide a failure of ours.
        """
        if isinstance(error, _core.FreezeError):
            why = describe(error)
        else:
            why = error.message if isinstance(error, RametError) else str(error)
        if not ours:
            return why
        self.last_error = f"{what}: {why}"
        self.failures += 1
        if self._opening is not None and self._opening.done() and self._opening.exception() is None:
            # Not awaited: only `ramet doctor` reads it, and the disk may be slow.
            asyncio.get_running_loop().run_in_executor(None, keep_error, self._opening.result(), self.last_error)
        return why

    # Pouring

    async def open(self, name: str) -> OpenImage | None:
        """The image of this name, the caller's. Raises as `store`, and ImageRefused."""
        store = await self.store()
        return await finish(asyncio.to_thread(_find, store, name), _close_found)

    async def used(self, name: str, work: Callable[[OpenImage], Awaitable[T]]) -> T | None:
        """Open the image of this name and return what ``work`` makes of it; None if there is none. Raises as `open`.

        Another engine may give the name to a newer image meanwhile, and remove the old one: files of it that were not
        open yet are gone then, and the newer one is used.
        """
        for left in reversed(range(_ATTEMPTS)):
            opened = await self.open(name)
            if opened is None:
                return None
            with opened:
                try:
                    return await work(opened)
                except FileNotFoundError:
                    if not left or await self.image_id(name) == opened.manifest.id:
                        raise
        return None

    async def pour(self, opened: OpenImage, pod: Pod, loaded: bytes) -> _core.Snapshot:
        """An empty process that becomes the image, behind today's filter, in the tree of a pod made for booting.

        Raises one of FAILURES, and leaves nothing behind.
        """
        manifest = opened.manifest
        threads = await asyncio.to_thread(opened.part, "threads")
        old_vdso = await asyncio.to_thread(opened.part, vdso.PART)
        check_processor(manifest.processor)
        shifts = identity.clock_shifts(manifest)
        planned = await asyncio.to_thread(map_large_blocks, manifest.segments, opened.pages)
        manifest = replace(manifest, segments=planned)
        # A caller that is cancelled waits for the thread: a process that it makes would have no owner.
        made = asyncio.to_thread(self._fitting_blank, manifest, pod, shifts, loaded, opened.pages)
        pid = await finish(made, _end_blank)
        # The snapshot owns the process from here on, also when this step fails.
        held = self._traced(_core.hold_blank, pid, threads, _POUR_SECONDS)
        snapshot = await finish(held, lambda made: self._tracer.submit(_core.end_snapshot, made))
        with contextlib.ExitStack() as undo:
            # By the tracer, and not awaited: a second cancellation would drop what has not begun.
            undo.callback(self._tracer.submit, _core.end_snapshot, snapshot)
            here, homes = await asyncio.to_thread(_find_homes, manifest, old_vdso, pid)
            if homes.carried and _core.stands_in(snapshot, homes.carried_at, homes.carried_at + len(homes.carried)):
                raise ImageRefused(
                    "the image can only be used on the kernel that it was made on: a thread was inside the code that "
                    "this kernel gives to processes (the vdso)",
                    hint="boot that kernel, or make the image again",
                )
            calls = map_calls(manifest, here, homes)
            await finish(self._traced(_core.pour, snapshot, calls, _POUR_SECONDS), lambda _: None)
            # By another process: it may be gigabytes, and every other sandbox needs the tracer's thread.
            await finish(asyncio.to_thread(_fill, pid, manifest, opened.pages), lambda _: None)
            await asyncio.to_thread(_write_texts, pid, texts(manifest, homes))
            last = last_calls(manifest, homes)
            await finish(self._traced(_core.pour, snapshot, last, _POUR_SECONDS), lambda _: None)
            undo.pop_all()
        self.poured += 1
        return snapshot

    async def _traced(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._tracer, work, *arguments)

    def _fitting_blank(
        self, manifest: Manifest, pod: Pod, shifts: identity.Shifts, loaded: bytes, pages: Sequence[int]
    ) -> int:
        """One in which the stack of the image can grow: the kernel places new mappings at random."""
        for left in reversed(range(_BLANKS_AT_MOST)):
            pid = self._blank(pod, shifts, loaded, pages)
            if not left or stack_can_grow(manifest, highest_mapping(pid)):
                break
            _end_blank(pid)
        return pid

    def _blank(self, pod: Pod, shifts: identity.Shifts, loaded: bytes, pages: Sequence[int]) -> int:
        """An empty process in the pod's tree, if that still shows all files as the image has loaded them."""
        with contextlib.ExitStack() as ours:
            numbers = [self._holder.pidfd, pod.handle.init_pidfd]
            for name, data in (("filter", compile_filter(pod.uncounted)), ("loaded", loaded)):
                numbers.append(os.memfd_create(name, os.MFD_CLOEXEC))
                ours.callback(os.close, numbers[-1])
                os.write(numbers[-1], data)
            done = subprocess.run(
                [str(HELPER), "blank", *map(str, (*numbers, *shifts, FIRST_PAGE_FILE, *pages))],
                pass_fds=(*numbers, *pages), env={}, capture_output=True, text=True, errors="replace", check=False,
            )  # fmt: skip
        if done.returncode:
            hint = None if done.returncode != _STALE else "put that version of it back, or make the image again"
            raise ImageRefused(done.stderr.strip() or "the helper program was ended", hint=hint)
        return int(done.stdout)

    async def forget(self, name: str) -> None:
        """Remove the image of this name, if there is one. One that is being written is waited for, and goes too."""
        async with self.of_name.held(name):
            with contextlib.suppress(*FAILURES):
                await asyncio.to_thread((await self.store()).forget, name)

    async def bytes_of(self, owner_part: str) -> int:
        """Bytes on disk of all images of an owner."""
        images = await asyncio.to_thread((await self.store()).images)
        return sum(image.size_bytes for image in images if any(f"-{owner_part}-" in name for name in image.names))

    async def names(self, prefix: str) -> list[str]:
        """Of the images whose names begin like this."""
        return await asyncio.to_thread((await self.store()).names, prefix)

    async def image_id(self, name: str) -> str | None:
        """Of the image that has this name now. Raises as `store`."""
        return await asyncio.to_thread((await self.store()).find, name)

    # Writing

    async def write(self, source: ImageSource) -> int:
        """Write an image, and give it its name. Returns its size in bytes. The caller keeps the snapshot alive.

        Raises one of FAILURES; then the name leads to what it led to before.
        """
        if self._giving_way is not None and not source.gives_way:
            self._giving_way.stop()
        async with self._turn:
            if self._closed:  # asked in the turn: the engine may have begun to close while this waited for it
                raise RametError("the image was not written: the engine is closing")
            states = await self._traced(_core.states, source.snapshot, _POUR_SECONDS)
            store = await self.store()
            writer = self._writer = PageWriter(store.hash_key)
            self._giving_way = writer if source.gives_way else None
            work = asyncio.create_task(asyncio.to_thread(self._write, store, writer, source, *states))
            try:
                size = await asyncio.shield(work)
            except asyncio.CancelledError:
                writer.stop()
                # A caller that is cancelled waits for the thread, which reads memory of a process that is ended next.
                await asyncio.wait([work])
                work.exception()
                raise
            finally:
                self._giving_way = None
            self.written += 1
            return size

    def give_way(self) -> None:
        """End the write that no caller waits for, if one is under way."""
        if self._giving_way is not None:
            self._giving_way.stop()

    def _write(
        self,
        store: ImageStore,
        writer: PageWriter,
        source: ImageSource,
        states: bytes,
        heap_end: int,
        actions: bytes,
    ) -> int:
        spec, pid = source.template, _core.shadow(source.snapshot)
        # At one moment: after a reboot the clocks go on by what the wall clock says has passed since.
        shifts, clocks, created = identity.shifts_of(pid), identity.clocks(), time.time()
        areas = kernels_areas(pid)
        shown = tuple(f"{tree}/" for tree in (*system_folders(), *spec.interpreter.trees, GUEST_FOLDER, LIBRARY_FOLDER))

        def is_systems(area: Area) -> bool:
            name = area.name
            return name.startswith(shown) and not name.endswith(" (deleted)") and not source.own_files(area)

        def make_room(memory_bytes: int) -> None:
            if memory_bytes > source.bytes_at_most:
                raise ImageRefused(f"its memory takes {memory_bytes} bytes, allowed are {source.bytes_at_most}")
            # Of an increment most is shared; what it really takes is counted with the next one.
            written_bytes = memory_bytes // 8 if source.bases else memory_bytes
            store.make_room(written_bytes + source.file_bytes, source.name, self._room)

        if not source.gives_way:
            store.sweep()
        with contextlib.ExitStack() as always, store.new() as new:
            base = _open_base(store, source.bases)
            known = None
            if base is not None:
                always.enter_context(base)
                hashes = base.open("hashes")
                always.callback(os.close, hashes)
                known = BasePages(base.manifest.segments, hashes)
                new.link_all(base)
            with contextlib.ExitStack() as written_to:
                pages, table = new.create("pages"), new.create("hashes")
                written_to.callback(os.close, table)
                written_to.callback(os.close, pages)
                written = write_memory(pid, writer, pages, table, is_systems, make_room, known)
                size = os.fstat(pages).st_size
            segments, page_files = _share(new, size, written.segments, base)
            parts = {"threads": states, vdso.PART: read_vdso(pid, areas), **source.parts(new, written.files)}
            manifest = Manifest(
                id=new.id,
                template=spec,
                created=created,
                boot=identity.boot_id(),
                monotonic=clocks.monotonic + shifts.monotonic,
                boottime=clocks.boottime + shifts.boottime,
                clock_shift=shifts.monotonic,
                boottime_shift=shifts.boottime,
                processor=processor_here().text(),
                page_files=page_files,
                segments=segments,
                files=tuple(written.files),
                kernels_areas=tuple(written.kernels_areas),
                memory_limits=_memory_limits(pid, heap_end),
                auxiliary=_auxiliary(pid),
                actions=actions,
                open_files=source.open_files,
                digests=tuple(new.write(name, data) for name, data in parts.items()),
                imported=source.imported,
            )
            manifest.check()
            return store.commit(new, manifest, source.name)

    def room_for(self, store: ImageStore, name: str) -> int:
        """Bytes that an image of this name may take that comes from elsewhere. Blocks."""
        store.sweep()
        return store.room_for(name, self._room)

    def stop_writing(self) -> None:
        if self._writer is not None:
            self._writer.stop()

    async def close(self) -> None:
        """Ends a write that is under way, and begins no other."""
        self._closed = True
        self.stop_writing()
        async with self._turn:
            pass
        if self._opening is not None:
            store = (await asyncio.gather(self._opening, return_exceptions=True))[0]
            if isinstance(store, ImageStore):
                store.close()

    def facts(self) -> dict[str, object]:
        return {
            "folder": self.path,
            "poured": self.poured,
            "written": self.written,
            "failures": self.failures,
            "last_error": self.last_error,
        }

    async def figures(self) -> dict[str, object]:
        """The facts, and what the store holds by kind. Raises as `store`."""
        found = await asyncio.to_thread(figures, await self.store())
        kinds = {
            kind: {
                "images": of_kind.images,
                "size_bytes": of_kind.size_bytes,
                "oldest_used_ms": None if of_kind.oldest_used is None else int(of_kind.oldest_used * 1000),
            }
            for kind, of_kind in found.items()
        }
        return {**self.facts(), "kinds": kinds}


def _fill(pid: int, manifest: Manifest, pages: Sequence[int]) -> None:
    done = subprocess.run(
        [str(HELPER), "fill", str(pid), *map(str, pages)],
        input=fillings(manifest), pass_fds=pages, env={}, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ImageRefused(done.stderr.decode("utf-8", "replace").strip() or "the helper program was ended")


def _open_base(store: ImageStore, names: Sequence[str]) -> OpenImage | None:
    """The first image to leave pages out against. None: there is none, or all have collected too many page files."""
    for name in names:
        with contextlib.suppress(*FAILURES):
            image_id = store.find(name)
            opened = None if image_id is None else store.read(image_id)
            if opened is None:
                continue
            if len(opened.pages) < PAGE_FILES_AT_MOST and not _is_sparse(opened):
                return opened
            opened.close()
    return None


def _is_sparse(opened: OpenImage) -> bool:
    """Whether less than half of its page files is used: then the next image is written whole, and frees the rest."""
    mapped = [segment for segment in opened.manifest.segments if segment.kind in (PAGES, FILLED)]
    used = sum(segment.end - segment.start for segment in mapped)
    held = sum(os.fstat(pages).st_blocks * 512 for pages in opened.pages)
    return len(opened.pages) > 1 and used * 2 < held


def _share(
    new: NewImage, size: int, segments: Sequence[Segment], base: OpenImage | None
) -> tuple[tuple[Segment, ...], tuple[tuple[str, int], ...]]:
    """Link the page files of the base that are still used, and number all of them anew."""
    page_files = [("pages", size)]
    numbers = {0: 0}
    if base is not None:
        used = {segment.source for segment in segments if segment.kind in (PAGES, FILLED)}
        for number, (_, length) in enumerate(base.manifest.page_files):
            name = None
            if number + 1 in used:
                name = f"pages.{len(page_files)}"
                numbers[number + 1] = len(page_files)
                page_files.append((name, length))
            new.keep_linked(number, name)
    renumbered = tuple(
        replace(each, source=numbers[each.source]) if each.kind in (PAGES, FILLED) else each for each in segments
    )
    return renumbered, tuple(page_files)


def _find(store: ImageStore, name: str) -> OpenImage | None:
    for left in reversed(range(_ATTEMPTS)):
        image_id = store.find(name)
        if image_id is None:
            return None
        try:
            opened = store.read(image_id)
        except FileNotFoundError:
            if not left or store.find(name) == image_id:
                raise
            continue  # another engine has replaced it meanwhile
        store.touch(image_id)
        return opened
    return None


def _close_found(opened: OpenImage | None) -> None:
    if opened is not None:
        opened.close()


def _end_blank(pid: int) -> None:
    end_process(os.pidfd_open(pid))


def _find_homes(manifest: Manifest, old_vdso: bytes, pid: int) -> tuple[dict[str, tuple[int, int]], vdso.Homes]:
    here = kernels_areas(pid)
    return here, vdso.find_homes(manifest, old_vdso, here, read_vdso(pid, here))


def _write_texts(pid: int, written: Sequence[tuple[int, bytes]]) -> None:
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for address, data in written:
            memory.seek(address)
            memory.write(data)


def _auxiliary(pid: int) -> bytes:
    """Up to the entry that ends it."""
    with open(f"/proc/{pid}/auxv", "rb") as file:
        return file.read()


def _memory_limits(pid: int, heap_end: int) -> tuple[int, ...]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        words = file.read().rpartition(")")[2].split()  # the name of a process may hold anything
    found = {name: int(words[place - 3]) for name, place in _STAT_PLACES.items()}
    found["brk"] = heap_end
    return tuple(found[name] for name in MEMORY_LIMITS)
