"""Images of sandboxes: a snapshot under a name on disk, with everything that its copies get."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ramet.errors import RametError
from ramet.freezing.frozen import Frozen
from ramet.freezing.images import identity
from ramet.freezing.images.file_trees import read_files, write_files
from ramet.freezing.images.images import FAILURES, Images, ImageSource
from ramet.freezing.images.manifest import ImageRefused
from ramet.freezing.images.memory import Area, mapped_inode
from ramet.freezing.images.moving import mapped_files
from ramet.freezing.images.moving.carrier import Receive, packed, parts_of, unpacked
from ramet.freezing.images.moving.file_checks import clean
from ramet.freezing.images.moving.landing import commit_unpacked
from ramet.freezing.images.moving.saved_state import SavedState, read_state
from ramet.freezing.images.moving.state import check_state
from ramet.freezing.images.processor import check_processor
from ramet.freezing.images.stored.store import ImageStore, NewImage, OpenImage
from ramet.freezing.live import SandboxRecipes
from ramet.freezing.resource_limits import BOOT_LIMITS
from ramet.isolation.files.layers import FileImage
from ramet.isolation.kernel import syscalls
from ramet.isolation.pods import PodMaker
from ramet.isolation.thread_work import finish
from ramet.protocol.import_terms import ImportTerms
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import TemplateSpec

_FILES = "files"
_SLACK_BYTES = 1 << 30  # template and libraries


@dataclass(frozen=True, slots=True)
class WritingPoint:
    """How an image is written that no caller waits for."""

    base: str | None  # name of an earlier image of the same sandbox
    bytes_at_most: int


class SandboxImages:
    """Writes and pours the images of one machine's sandboxes."""

    def __init__(
        self,
        images: Images,
        maker: PodMaker,
        tracer: ThreadPoolExecutor,
        template_name: Callable[[TemplateSpec], str],
    ) -> None:
        self._images = images
        self._template_name = template_name
        self._maker = maker
        self._tracer = tracer
        self._began = time.time()

    async def store(self) -> ImageStore:
        """Raises RametError where the folder cannot be used."""
        try:
            return await self._images.store()
        except FAILURES as error:
            why = self._images.note("the folder of images was not opened", error)
            raise RametError(f"the folder of images cannot be used: {why}") from error

    async def save(
        self, frozen: Frozen, name: str, about: Mapping[str, object], point: WritingPoint | None = None
    ) -> int:
        """Write a snapshot under a name. ``about`` is the engine's own, plain data. Returns the size in bytes.

        Pages that the image of this name has already, or else the image of its template, are not written again.

        The name leads to the snapshot of the last call, whichever of several is ready first: the checkpoint of a state
        that has passed must not take the place of the state that a sandbox has gone to sleep with.

        Raises RametError; then nothing has changed on disk.
        """
        if not isinstance(frozen.recipes, SandboxRecipes):
            raise RametError("only the snapshot of a sandbox can be saved")
        async with self._images.of_name.held(name):
            return await self._save(frozen, frozen.recipes, name, about, point)

    async def _save(
        self,
        frozen: Frozen,
        recipes: SandboxRecipes,
        name: str,
        about: Mapping[str, object],
        point: WritingPoint | None,
    ) -> int:
        limits = recipes.limits
        bases = await self._bases(frozen, name if point is None else point.base)
        bytes_at_most = limits.memory_bytes + limits.disk_bytes + _SLACK_BYTES
        if point is not None:
            bytes_at_most = min(bytes_at_most, point.bytes_at_most)
        guest = await asyncio.to_thread(identity.guest_digest, self._images.guest)
        # A fresh tree: what the mapped files are, without anything that the sandbox has written.
        pod = await self._maker.make(frozen.template.interpreter, BOOT_LIMITS, (), boot=True)
        source = ImageSource(
            name,
            frozen.template,
            frozen.snapshot,
            bases=bases,
            gives_way=point is not None,
            bytes_at_most=bytes_at_most,
            file_bytes=recipes.image.file_bytes,
            own_files=_OwnFiles(recipes.image, pod.root, self._began),
            parts=partial(_parts, frozen, recipes, {**about, "guest": guest}, pod.root, name, time.time()),
            imported=recipes.imported,
        )
        try:
            return await self._images.write(source)
        except FAILURES as error:
            why = self._images.note(f"the image {name!r} was not written", error)
            message = f"the state of the sandbox could not be written to disk: {why}"
            raise RametError(message, hint=getattr(error, "hint", None)) from error
        finally:
            await pod.close()

    async def _bases(self, frozen: Frozen, name: str | None) -> tuple[str, ...]:
        try:
            store = await self._images.store()
            template = await asyncio.to_thread(self._template_name, frozen.template)
            found = None if name is None else await asyncio.to_thread(store.find, name)
        except FAILURES:
            return ()
        return (template,) if name is None or found is None else (name, template)

    async def load(self, name: str) -> tuple[Frozen, dict[str, Any]] | None:
        """The snapshot that was saved under a name, frozen again, and ``about``. None: there is none.

        Raises ImageRefused where it cannot be used, here or at all; it stays on disk.
        """
        try:
            return await self._images.used(name, lambda opened: self._load(opened, name))
        except FAILURES as error:
            why = self._images.note(f"the image {name!r} was not used", error)
            hint = getattr(error, "hint", None) or "`ramet images verify` checks what is on disk"
            raise ImageRefused(f"the image on disk cannot be used: {why}", hint=hint) from error

    async def _load(self, opened: OpenImage, name: str) -> tuple[Frozen, dict[str, Any]]:
        manifest = opened.manifest
        check_processor(manifest.processor)
        read = await asyncio.to_thread(_read, opened, name)
        if read.about.pop("guest", None) != await asyncio.to_thread(identity.guest_digest, self._images.guest):
            raise ImageRefused("the image was made with another version of Ramet", hint="make it again with this one")
        async with contextlib.AsyncExitStack() as undo:
            image = await finish(asyncio.to_thread(_read_files, opened, read.files), FileImage.close)
            undo.callback(image.close)
            pod = await self._maker.make(manifest.template.interpreter, BOOT_LIMITS, (), boot=True)
            undo.push_async_callback(pod.close)
            loaded = await asyncio.to_thread(_loaded, opened, pod.root)
            snapshot = await self._images.pour(opened, pod, loaded)
            undo.pop_all()
        recipes = SandboxRecipes(
            process=read.process,
            descriptors=read.descriptors,
            maps=read.maps,
            image=image,
            timed_calls=b"",
            thread_ids=read.thread_ids,
            limits=read.limits,
            copy_seconds=read.copy_seconds,
            imported=manifest.imported,
        )
        frozen = Frozen(
            snapshot,
            recipes,
            manifest.template,
            recipes.limits,
            self._tracer,
            mounts=read.mounts,
            lineage=read.lineage,
            kept_pid=read.kept_pid,
            pod=pod,
        )
        return frozen, {**read.about, "image_id": manifest.id}

    # As one file

    async def export(self, name: str) -> AsyncGenerator[bytes, None]:
        """The bytes of the image of this name as one file. The name is forgotten when they begin to come.

        Raises ImageRefused.
        """
        try:
            opened = await self._images.open(name)
            if opened is None:
                raise ImageRefused("the image is gone")
            # Opened before the name goes: nothing of it stays on disk, however slow its reader is.
            with opened, parts_of(opened) as parts:
                pod = await self._maker.make(opened.manifest.template.interpreter, BOOT_LIMITS, (), boot=True)
                try:
                    await self._images.forget(name)
                    async for piece in packed(opened, parts, pod.root):
                        yield piece
                finally:
                    await pod.close()
        except FAILURES as error:
            why = self._images.note(f"the image {name!r} was not exported", error)
            raise ImageRefused(
                f"the snapshot could not be exported: {why}", hint=getattr(error, "hint", None)
            ) from error

    async def take_in(self, receive: Receive, asked: ImportTerms) -> None:
        """Write an image that comes as one file under the name that the terms say.

        Raises ImageRefused with what is wrong with the file, and what ``receive`` raises.
        """
        try:
            store = await self._images.store()
            room_bytes = await asyncio.to_thread(self._images.room_for, store, asked.name)
            with store.new() as new:
                terms = dataclasses.replace(asked, id=new.id, room_bytes=min(asked.room_bytes, room_bytes))
                manifest = await unpacked(receive, new.folder, terms)
                await asyncio.to_thread(commit_unpacked, store, new, manifest, asked.name)
        except FAILURES as error:
            of_the_file = isinstance(error, ImageRefused)
            why = self._images.note("an image was not imported", error, ours=not of_the_file)
            raise ImageRefused(
                f"the image was not imported: {why}",
                hint=getattr(error, "hint", None),
                details={"status": 400} if of_the_file else {},
            ) from error


def _parts(
    frozen: Frozen,
    recipes: SandboxRecipes,
    about: Mapping[str, object],
    root: int,
    name: str,
    began: float,
    new: NewImage,
    mapped: Sequence[str],
) -> dict[str, bytes]:
    """All that an image of a sandbox has besides memory and threads."""
    with os.fdopen(new.create(_FILES), "wb") as out:
        files = write_files(recipes.image, out)
        out.flush()
        os.fdatasync(out.fileno())
    # Files that were written to later are not among them, unless that happened just now.
    loaded = identity.loaded_list(root, mapped, began)
    state = SavedState(
        name=name,
        about=dict(about),
        files=files,
        process=recipes.process,
        descriptors=recipes.descriptors,
        maps=recipes.maps,
        thread_ids=recipes.thread_ids,
        limits=recipes.limits,
        copy_seconds=recipes.copy_seconds,
        mounts=frozen.mounts,
        lineage=frozen.lineage,
        kept_pid=frozen.kept_pid,
    )
    return {"state": state.encode(), "loaded": loaded}


class _OwnFiles:
    """Whether a mapped file is another one than a fresh pod shows by its path.

    Either the sandbox has written it, or it was replaced on the host since: a package was upgraded, say. The bytes of
    such a mapping are written, which is never wrong.
    """

    def __init__(self, image: FileImage, root: int, engine_began: float) -> None:
        self._image = image
        self._root = root  # of a fresh pod
        self._engine_began = engine_began
        self._known: dict[tuple[str, int], bool] = {}

    def __call__(self, area: Area) -> bool:
        key = area.name, area.inode
        if key not in self._known:
            self._known[key] = self._is_another(area) or self._is_written(area.name)
        return self._known[key]

    def _is_another(self, area: Area) -> bool:
        try:
            file = syscalls.open_in_root(self._root, area.name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return True  # every pod shows the folder, but not this file: a host folder that only this sandbox had
        try:
            # Written to since the engine began, in place or anew: which bytes the sandbox has mapped cannot be told.
            found = os.fstat(file)
            if found.st_ctime >= self._engine_began:
                return True
            return found.st_ino != area.inode and mapped_inode(file) != area.inode
        except (OSError, ValueError):
            return True
        finally:
            os.close(file)

    def _is_written(self, path: str) -> bool:
        mounts = [layer.mount for layer in self._image.layers]
        if self._image.files is not None:
            mounts.append(self._image.files)
        # Overlays nest: "root" is "/", and "treeN" is another place. A name that ends like the path is close enough.
        for mount in mounts:
            for top in os.listdir(f"/proc/self/fd/{mount}"):
                parts = path.strip("/").split("/")
                for first in range(len(parts)):
                    if os.path.lexists(f"/proc/self/fd/{mount}/{top}/{'/'.join(parts[first:])}"):
                        return True
        return False


def _read(opened: OpenImage, name: str) -> SavedState:
    found = read_state(opened.part("state"), name)
    return check_state(found, opened.manifest, found.limits) if opened.manifest.imported else found


def _read_files(opened: OpenImage, about: dict[str, Any]) -> FileImage:
    with os.fdopen(opened.open(_FILES), "rb") as source:
        if opened.manifest.imported:
            return read_files(about, source, clean)
        return read_files(about, source)


def _loaded(opened: OpenImage, root: int) -> bytes:
    """Identity of the files that the image was made of, as the tree of a pod must show them."""
    manifest = opened.manifest
    if not manifest.imported or "sources" not in dict(manifest.digests):
        return opened.part("loaded")
    # Times and inodes are those of another machine: the contents must be the same.
    mapped_files.check_paths(manifest.files, manifest.template.interpreter)
    mapped_files.compare(root, manifest.files, opened.part("sources"))
    return identity.loaded_list(root, manifest.files, math.inf)
