"""Images of sandboxes: a snapshot under a name on disk, with everything that its copies get."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ramet.errors import RametError
from ramet.freezing.descriptors import OpenDescriptors, SharedMap
from ramet.freezing.frozen import Frozen
from ramet.freezing.images import identity, plain_data
from ramet.freezing.images.file_trees import read_files, write_files
from ramet.freezing.images.images import FAILURES, Images, ImageSource
from ramet.freezing.images.manifest import ImageRefused
from ramet.freezing.images.memory import Area, mapped_inode
from ramet.freezing.images.processor import check_processor
from ramet.freezing.images.store import ImageStore, NewImage, OpenImage
from ramet.freezing.live import SandboxRecipes
from ramet.freezing.process_state import ProcessState
from ramet.freezing.resource_limits import BOOT_LIMITS
from ramet.isolation.files.layers import FileImage
from ramet.isolation.kernel import syscalls
from ramet.isolation.pods import PodMaker
from ramet.isolation.thread_work import finish
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import Limits, MountSpec, TemplateSpec

_FILES = "files"
_SLACK_BYTES = 1 << 30  # template and libraries


@dataclass(frozen=True, slots=True)
class WritingPoint:
    """How an image is written that nobody waits for."""

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

        Raises RametError; then nothing has changed on disk.
        """
        if not isinstance(frozen.recipes, SandboxRecipes):
            raise RametError("only the snapshot of a sandbox can be saved")
        limits = frozen.recipes.limits
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
            file_bytes=frozen.recipes.image.file_bytes,
            own_files=_OwnFiles(frozen.recipes.image, pod.root, self._began),
            parts=partial(_parts, frozen, frozen.recipes, {**about, "guest": guest}, pod.root, name, time.time()),
        )
        try:
            return await self._images.write(source)
        except FAILURES as error:
            why = self._images.note(f"the image {name!r} was not written", error)
            raise RametError(f"the snapshot could not be saved: {why}", hint=getattr(error, "hint", None)) from error
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
            opened = await self._images.open(name)
            if opened is None:
                return None
            with opened:
                return await self._load(opened, name)
        except FAILURES as error:
            why = self._images.note(f"the image {name!r} was not used", error)
            hint = getattr(error, "hint", None) or "ramet images lists what is there; saving it again replaces it"
            raise ImageRefused(f"the saved snapshot cannot be used: {why}", hint=hint) from error

    async def _load(self, opened: OpenImage, name: str) -> tuple[Frozen, dict[str, Any]]:
        manifest = opened.manifest
        check_processor(manifest.processor)
        state, loaded = await asyncio.to_thread(lambda: (opened.part("state"), opened.part("loaded")))
        read = await asyncio.to_thread(_read_state, state, name)
        if read["about"].pop("guest", None) != await asyncio.to_thread(identity.guest_digest, self._images.guest):
            raise ImageRefused("the image was made with another version of Ramet", hint="make it again with this one")
        async with contextlib.AsyncExitStack() as undo:
            image = await finish(asyncio.to_thread(_read_files, opened, read["files"]), FileImage.close)
            undo.callback(image.close)
            pod = await self._maker.make(manifest.template.interpreter, BOOT_LIMITS, (), boot=True)
            undo.push_async_callback(pod.close)
            snapshot = await self._images.pour(opened, pod, loaded)
            undo.pop_all()
        recipes = SandboxRecipes(
            process=read["process"],
            descriptors=read["descriptors"],
            maps=read["maps"],
            image=image,
            timed_calls=b"",
            thread_ids=read["thread_ids"],
            limits=read["limits"],
            copy_seconds=read["copy_seconds"],
        )
        frozen = Frozen(
            snapshot,
            recipes,
            manifest.template,
            recipes.limits,
            self._tracer,
            mounts=read["mounts"],
            lineage=read["lineage"],
            kept_pid=read["kept_pid"],
            pod=pod,
        )
        return frozen, {**read["about"], "image_id": manifest.id}


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
    state = {
        "name": name,
        "about": dict(about),
        "files": files,
        "process": plain_data.encode(recipes.process),
        "descriptors": plain_data.encode(recipes.descriptors),
        "maps": plain_data.encode(recipes.maps),
        "thread_ids": plain_data.encode(recipes.thread_ids),
        "limits": plain_data.encode(recipes.limits),
        "copy_seconds": recipes.copy_seconds,
        "mounts": plain_data.encode(frozen.mounts),
        "lineage": plain_data.encode(frozen.lineage),
        "kept_pid": frozen.kept_pid,
    }
    return {"state": json.dumps(state).encode("ascii"), "loaded": loaded}


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
            # Written to since the engine began, in place or anew: nobody knows which state the sandbox has mapped.
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


def _read_files(opened: OpenImage, about: dict[str, Any]) -> FileImage:
    with os.fdopen(opened.open(_FILES), "rb") as source:
        return read_files(about, source)


def _read_state(data: bytes, name: str) -> dict[str, Any]:
    try:
        state = json.loads(data)
        if state["name"] != name:
            raise ImageRefused(f"the image was saved as {state['name']!r:.60}, not as {name!r:.60}")
        found = {
            "process": plain_data.decode(state["process"], ProcessState),
            "descriptors": plain_data.decode(state["descriptors"], OpenDescriptors),
            "maps": plain_data.decode(state["maps"], tuple[SharedMap, ...]),
            "thread_ids": plain_data.decode(state["thread_ids"], frozenset[int]),
            "limits": plain_data.decode(state["limits"], Limits),
            "mounts": plain_data.decode(state["mounts"], tuple[MountSpec, ...]),
            "lineage": plain_data.decode(state["lineage"], frozenset[int]),
            "kept_pid": plain_data.decode(state["kept_pid"], int | None),
            "copy_seconds": float(state["copy_seconds"]),
            "files": state["files"],
            "about": state["about"],
        }
        if not isinstance(found["files"], dict) or not isinstance(found["about"], dict):
            raise ImageRefused("the state of the image cannot be read")
        return found
    except (ValueError, TypeError, KeyError) as error:
        raise ImageRefused(f"the state of the image cannot be read: {error!r:.80}") from error
