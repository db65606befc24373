"""The files of a sandbox at one moment, held so that any number of pods can begin with them.

What a sandbox wrote lies in its pod's tmpfs: the upper folders of its overlays ("root" for /, "treeN" for place N of
the layout). A small upper is copied into each new pod, inode numbers and all. A large one is copied once and becomes a
sealed layer below the upper of every new pod. /dev/shm is always copied.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import stat
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ramet.isolation import syscalls
from ramet.isolation.copies import Copy, folder, names_in, used
from ramet.isolation.walks import Walks

SMALL_BYTES = 32 << 20
SMALL_ENTRIES = 1000
_SMALL_FOLDERS = 300  # a copy with inode numbers holds two descriptors of each
MOST_LAYERS = 8  # each costs every lookup of a missing name some microseconds

_OVERLAY_ATTRIBUTES = "user.overlay."


class Attacher(Protocol):
    """Where sealed layers are shown to builders of pods: the holder."""

    async def attach_layer(self, mount: int) -> int: ...
    def detach_tree(self, number: int) -> None: ...


class Layer:
    """A sealed copy of what a sandbox wrote. Belongs to all images and pods that lie over it; each drops it."""

    def __init__(self, mount: int, size_bytes: int, entries: int) -> None:
        self.mount = mount
        self.size_bytes = size_bytes
        self.entries = entries
        self._users = 1
        self._lock = threading.Lock()  # images are captured in the tracer's thread
        self._attached: asyncio.Task[int] | None = None
        self._attacher: Attacher | None = None
        self._number: int | None = None

    def keep(self) -> Layer:
        with self._lock:
            self._users += 1
        return self

    def drop(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if not last:
            return
        os.close(self.mount)
        if self._attacher is not None and self._number is not None:
            self._attacher.detach_tree(self._number)

    async def attach(self, attacher: Attacher) -> int:
        """Its number as a tree of the holder; concurrent calls share the work."""
        if self._attached is None:
            self._attacher = attacher
            self._attached = asyncio.create_task(self._attach(attacher))
        task = self._attached
        try:
            return await asyncio.shield(task)
        except Exception:
            if self._attached is task:
                self._attached = None
            raise

    async def _attach(self, attacher: Attacher) -> int:
        self.keep()  # until the holder has answered, whoever asked
        try:
            self._number = await attacher.attach_layer(self.mount)
            return self._number
        finally:
            self.drop()


@dataclass(frozen=True, slots=True)
class _Mark:
    """By this one sees, without a walk, that nothing was written since."""

    inodes: int
    tops: tuple[tuple[int, int], ...]  # change time and mode of each top folder

    @classmethod
    def of(cls, file_system: int, tops: Collection[str]) -> _Mark:
        used = os.fstatvfs(file_system)
        found = [os.stat(name, dir_fd=file_system, follow_symlinks=False) for name in tops]
        return cls(used.f_files - used.f_ffree, tuple((top.st_ctime_ns, top.st_mode) for top in found))


@dataclass(frozen=True, slots=True)
class Written:
    """A file in a pod's writable layer."""

    overlay: str
    path: str  # below the overlay's folder
    number: int
    size_bytes: int
    names: int


class PodFiles:
    """The writable side of a pod: descriptors that the pod owns, and what it was made with."""

    def __init__(
        self, upper: int, shm: int, overlays: tuple[tuple[str, str], ...], image: FileImage | None = None
    ) -> None:
        self.upper = upper
        self.shm = shm
        self.overlays = overlays  # name of the upper folder, path in the pod
        self.owner = ""  # whose files they are, once they are somebody's
        self.layers: tuple[Layer, ...] = tuple(layer.keep() for layer in image.layers) if image is not None else ()
        # A pod that began with copies has something to copy whether or not it wrote.
        self._upper_mark = _Mark.of(upper, self.names) if image is None or image.files is None else None
        self._shm_mark = _Mark.of(shm, (".",)) if image is None or image.shm is None else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.overlays)

    def wrote_files(self) -> bool:
        return self._upper_mark is None or self._upper_mark != _Mark.of(self.upper, self.names)

    def wrote_shm(self) -> bool:
        return self._shm_mark is None or self._shm_mark != _Mark.of(self.shm, (".",))

    def top_changed(self, name: str) -> bool:
        """Whether the top folder of an overlay itself is not as every pod has it."""
        if self._upper_mark is None:
            return True
        mode = os.stat(name, dir_fd=self.upper, follow_symlinks=False).st_mode
        if mode != self._upper_mark.tops[self.names.index(name)][1]:
            return True
        with folder(self.upper, name) as top:
            return any(not key.startswith(_OVERLAY_ATTRIBUTES) for key in os.listxattr(top))

    def find_written(self, paths: Collection[bytes]) -> list[Written]:
        """Those of these files of the pod that lie in its writable layer."""
        found = []
        for path in paths:
            text = os.fsdecode(path)
            # Of the mounts above a path, the one with the longest name is the nearest.
            name, top = max((each for each in self.overlays if _is_below(text, each[1])), key=lambda each: len(each[1]))
            relative = text[len(top) :].strip("/")
            try:
                with folder(self.upper, name) as upper:
                    descriptor = syscalls.open_below(upper, relative, os.O_PATH | os.O_NOFOLLOW)
            except OSError:
                continue  # not there, or there by other means
            about = os.fstat(descriptor)
            os.close(descriptor)
            if stat.S_ISREG(about.st_mode):
                found.append(Written(name, relative, about.st_ino, about.st_blocks * 512, about.st_nlink))
        return found

    def close(self) -> None:
        for layer in self.layers:
            layer.drop()
        self.layers = ()
        os.close(self.upper)
        os.close(self.shm)


class _HasFiles(Protocol):
    @property
    def files(self) -> PodFiles: ...


class FileImage:
    """What a snapshot holds of its sandbox's files. Owned by the snapshot; pods made with it do not need it later."""

    def __init__(self, files: int | None, shm: int | None, layers: tuple[Layer, ...], file_bytes: int) -> None:
        self.files = files  # a tmpfs: the upper folders, and the list "numbers"
        self.shm = shm  # a tmpfs with a folder "shm"
        self.layers = layers  # sealed, topmost first
        self.file_bytes = file_bytes  # copied when it was captured; not once for each pod
        self.owner = ""
        self._merging: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether a fresh pod is all it takes."""
        return self.files is None and self.shm is None and not self.layers

    @classmethod
    def capture(cls, pod: _HasFiles, open_files: Collection[bytes] | None = None) -> FileImage:
        """A copy of what the pod's processes wrote, while none of them runs. Blocks; raises OSError.

        `open_files`: paths of the files that are open, as the pod knows them. These have the same inode numbers in new
        pods, and are there to be written without another copy. None: it is not known which are, and all have.
        """
        source = pod.files
        with contextlib.ExitStack() as undo:
            layers = tuple(layer.keep() for layer in source.layers)
            for layer in layers:
                undo.callback(layer.drop)
            shm, copied = _capture_shm(source) if source.wrote_shm() else (None, 0)
            if shm is not None:
                undo.callback(os.close, shm)
            files, sealed = _capture_upper(source, open_files) if source.wrote_files() else (None, None)
            undo.pop_all()
        if files is not None:
            copied += files.size_bytes
        if sealed is not None:
            copied += sealed.size_bytes
            layers = (sealed, *layers)
        image = cls(files.mount if files is not None else None, shm, layers, copied)
        image.owner = source.owner
        return image

    async def attach(self, attacher: Attacher, walks: Walks) -> tuple[int, ...]:
        """The numbers of its layers in the holder. A chain that has become too long is first made into one layer."""
        if len(self.layers) > MOST_LAYERS:
            if self._merging is None:
                self._merging = asyncio.create_task(self._merge(walks))
            task = self._merging
            try:
                await asyncio.shield(task)
            except Exception:
                if self._merging is task:
                    self._merging = None
                raise
        return tuple([await layer.attach(attacher) for layer in self.layers])

    async def _merge(self, walks: Walks) -> None:
        # Hard links do not reach from one tmpfs into another, so this copies; at most once in eight large forks.
        chain = tuple(layer.keep() for layer in self.layers)
        try:
            merged = await walks.run(self.owner, lambda _: merge_layers(chain), Layer.drop)
        finally:
            for layer in chain:
                layer.drop()
        replaced, self.layers = self.layers, (merged,)
        for layer in replaced:
            layer.drop()
        if not replaced:  # closed meanwhile
            self.close()

    def close(self) -> None:
        for descriptor in (self.files, self.shm):
            if descriptor is not None:
                os.close(descriptor)
        self.files = self.shm = None
        layers, self.layers = self.layers, ()
        for layer in layers:
            layer.drop()


def _capture_upper(source: PodFiles, open_files: Collection[bytes] | None) -> tuple[Copy | None, Layer | None]:
    """What is to be copied into each new pod, and what is to lie below each as a layer."""
    room = used(source.upper)
    large = room[0] > SMALL_BYTES or room[1] > SMALL_ENTRIES
    with Copy(*room) as copy:
        for name in source.names:
            if not copy.add(source.upper, name, name, numbers=not large) and not source.top_changed(name):
                copy.remove(name)
        if not copy.names():
            return None, None
        in_use = source.find_written(open_files) if open_files is not None else None
        if (
            copy.size_bytes <= SMALL_BYTES
            and copy.entries <= SMALL_ENTRIES
            and copy.folders <= _SMALL_FOLDERS
            and not large
        ):
            if in_use is not None:
                kept = {written.number for written in in_use}
                copy.numbers = array.array("Q", (number if number in kept else 0 for number in copy.numbers))
            copy.write_numbers()
            copy.keep()
            return copy, None
        sealed = Layer(copy.keep(sealed=True), copy.size_bytes, copy.entries)
    try:
        return _copy_in_use(source, in_use or ()), sealed
    except BaseException:
        sealed.drop()
        raise


def _copy_in_use(source: PodFiles, in_use: Sequence[Written]) -> Copy | None:
    """Open files that lie below a layer as well: there, the first write would give them another inode."""
    # One with several names would no longer be the file that its other names lead to.
    chosen = {(written.overlay, written.path): written for written in in_use if written.names == 1}
    size = sum(written.size_bytes for written in chosen.values())
    if not chosen or size > SMALL_BYTES or len(chosen) > _SMALL_FOLDERS:
        return None
    with Copy(size, len(chosen) * 16) as copy:
        for written in chosen.values():
            copy.add_file(source.upper, written.overlay, written.path)
        copy.write_numbers()
        copy.keep()
        return copy


def _capture_shm(source: PodFiles) -> tuple[int | None, int]:
    with Copy(*used(source.shm)) as copy:
        entries = copy.add(source.shm, ".", "shm")
        return (copy.keep(), copy.size_bytes) if entries else (None, 0)


def merge_layers(chain: Collection[Layer]) -> Layer:
    """One layer that means the same as these, topmost first. Blocks."""
    room = [used(layer.mount) for layer in chain]
    with Copy(sum(found[0] for found in room), sum(found[1] for found in room)) as copy:
        for layer in chain:
            for name in sorted(names_in(layer.mount)):
                copy.add(layer.mount, name, name)
        return Layer(copy.keep(sealed=True), copy.size_bytes, copy.entries)


def _is_below(path: str, top: str) -> bool:
    return top == "/" or path == top or path.startswith(f"{top}/")
