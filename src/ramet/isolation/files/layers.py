"""The files of a sandbox at one moment, kept so that any number of pods can start with them.

A sandbox's writes are in its pod's tmpfs, in the upper folders of its overlays ("root" for /, "treeN" for place N of
the layout). A small upper is copied into each new pod, with the same inode numbers. A large one is copied once and
becomes a sealed layer below the upper of every new pod. /dev/shm is always copied.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import os
import stat
import threading
from collections.abc import Collection, Sequence
from typing import Protocol

from ramet.isolation.files.ancestors import MOST_GENERATIONS, KeptAncestors
from ramet.isolation.files.copies import Copy, folder, names_in, used
from ramet.isolation.files.walks import Walks
from ramet.isolation.kernel import syscalls
from ramet.protocol.lazy_dataclasses import dataclass

SMALL_BYTES = 32 << 20
SMALL_ENTRIES = 1000
_SMALL_FOLDERS = 300  # copying with inode numbers holds two descriptors of each folder open
MOST_LAYERS = 8  # each layer adds microseconds to every lookup of a missing name

_OVERLAY_ATTRIBUTES = "user.overlay."
_kept_ancestors = KeptAncestors()
_numbers = itertools.count()


class Attacher(Protocol):
    """Shows sealed layers to the builders of pods. Implemented by the holder."""

    async def attach_layer(self, mount: int) -> int: ...
    def detach_tree(self, number: int) -> None: ...


class Layer:
    """A sealed copy of a sandbox's writes. All images and pods above it share it, and each drops its reference."""

    def __init__(self, mount: int, size_bytes: int, entries: int) -> None:
        self.mount = mount
        self.size_bytes = size_bytes
        self.entries = entries
        self._users = 1
        # Guards the count: the tracer's thread captures images, and with them takes and drops references, while the
        # event loop does the same for pods.
        self._lock = threading.Lock()
        self._attached: asyncio.Task[int] | None = None
        self._attacher: Attacher | None = None
        self._number: int | None = None

    def keep(self) -> Layer:
        """Take a reference. The caller holds one already, so the layer cannot be closed meanwhile."""
        with self._lock:
            self._users += 1
        return self

    def drop(self) -> None:
        """Drop a reference. The last one closes the mount and has the holder forget the layer."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if not last:
            return
        # Outside the lock: only the last user gets here, and there is no holder left who could take a new reference.
        os.close(self.mount)
        if self._attacher is not None and self._number is not None:
            self._attacher.detach_tree(self._number)

    async def attach(self, attacher: Attacher) -> int:
        """Attach the layer to the holder and return its number there. Concurrent calls share one request."""
        if self._attached is None:
            self._attacher = attacher
            self._attached = asyncio.create_task(self._attach(attacher))
        task = self._attached
        # Shielded: when one caller is cancelled, the others still wait for the same task.
        try:
            return await asyncio.shield(task)
        except Exception:
            # Let the next call try again, but leave a newer attempt alone that another waiter has started since.
            if self._attached is task:
                self._attached = None
            raise

    async def _attach(self, attacher: Attacher) -> int:
        # Hold a reference until the holder has answered, because the image that asked may be closed meanwhile. `drop`
        # then sees the number and detaches it; otherwise the holder would keep the tree for ever.
        self.keep()
        try:
            self._number = await attacher.attach_layer(self.mount)
            return self._number
        finally:
            self.drop()


@dataclass(frozen=True, slots=True)
class _Mark:
    """A cheap fingerprint of a tmpfs, compared to see without a walk whether anything was written.

    Every write needs an inode in the upper, of a new file or of one that the overlay copies up, and the count shows it.
    Creating and removing something at the top leaves the count as it was, but changes the top folder's ctime.
    """

    inodes: int
    tops: tuple[tuple[int, int], ...]  # ctime and mode of each top folder

    @classmethod
    def of(cls, file_system: int, tops: Collection[str]) -> _Mark:
        used = os.fstatvfs(file_system)
        found = [os.stat(name, dir_fd=file_system, follow_symlinks=False) for name in tops]
        return cls(used.f_files - used.f_ffree, tuple((top.st_ctime_ns, top.st_mode) for top in found))


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A regular file in a pod's writable layer."""

    overlay: str
    path: str  # relative to the overlay's folder
    number: int  # inode number
    size_bytes: int
    names: int  # hard links


class PodFiles:
    """The writable side of a pod: descriptors that the pod owns, and the layers that it was made with."""

    def __init__(
        self, upper: int, shm: int, overlays: tuple[tuple[str, str], ...], image: FileImage | None = None
    ) -> None:
        self.upper = upper
        self.shm = shm
        self.overlays = overlays  # (name of the upper folder, path in the pod)
        # Owner whose turn in `Walks` is used for work on these files; empty while the pod is in the pool.
        self.owner = ""
        self.identity = object()
        self.begun_with: FileImage | None = None  # the files that the sandbox began with, if it is a copy of another
        self.layers: tuple[Layer, ...] = tuple(layer.keep() for layer in image.layers) if image is not None else ()
        # No mark for a pod that started with copies: it has files to copy even if it never wrote any.
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
        """Whether the top folder of an overlay has another mode or attributes than in a fresh pod."""
        if self._upper_mark is None:
            return True
        mode = os.stat(name, dir_fd=self.upper, follow_symlinks=False).st_mode
        if mode != self._upper_mark.tops[self.names.index(name)][1]:
            return True
        with folder(self.upper, name) as top:
            return any(not key.startswith(_OVERLAY_ATTRIBUTES) for key in os.listxattr(top))

    def find_written(self, paths: Collection[bytes]) -> list[WrittenFile]:
        """Those of `paths` (as the pod sees them) that are regular files in its writable layer."""
        found = []
        for path in paths:
            text = os.fsdecode(path)
            # Overlays nest by path ("/" and a prefix below it). The longest matching path is the mount that the pod
            # sees.
            name, top = max((each for each in self.overlays if _is_below(text, each[1])), key=lambda each: len(each[1]))
            relative = text[len(top) :].strip("/")
            # Resolved below the upper folder without following links: the sandbox owns every name in it.
            try:
                with folder(self.upper, name) as upper:
                    descriptor = syscalls.open_below(upper, relative, os.O_PATH | os.O_NOFOLLOW)
            except OSError:
                continue  # not in this layer: it comes from a layer below, or from a mount of the host
            about = os.fstat(descriptor)
            os.close(descriptor)
            if stat.S_ISREG(about.st_mode):
                found.append(WrittenFile(name, relative, about.st_ino, about.st_blocks * 512, about.st_nlink))
        return found

    def descend_from(self, image: FileImage) -> None:
        """Remember the files that a copy of a sandbox began with, for as long as there is room for them."""
        self.begun_with = image.keep()

    def close(self) -> None:
        for layer in self.layers:
            layer.drop()
        self.layers = ()
        os.close(self.upper)
        os.close(self.shm)
        if self.begun_with is not None:
            self.begun_with.drop()


class _HasFiles(Protocol):
    @property
    def files(self) -> PodFiles: ...


class FileImage:
    """The files of a snapshot, which owns it.

    Pods made from it do not need it. They keep it as what they began with, for a comparison of three: `KeptAncestors`
    gives up its copies when they are too many.
    """

    def __init__(self, files: int | None, shm: int | None, layers: tuple[Layer, ...], file_bytes: int) -> None:
        self.files = files  # a tmpfs with the upper folders and the list "numbers"
        self.shm = shm  # a tmpfs with a folder "shm"
        self.layers = layers  # sealed, topmost first
        self.file_bytes = file_bytes  # bytes copied at capture, once for all pods
        self.number = next(_numbers)
        self.generation = 0
        self.copied_bytes = 0  # of these, what is not in a layer
        self.owner = ""
        self.source: object = object()  # the identity of the PodFiles it was taken from; of an image from disk nobody's
        self.before: FileImage | None = None  # what those began with
        self.gone = False  # its files are not there any more
        self._merging: asyncio.Task[None] | None = None
        self._users = 1
        self._closed = False
        # Guards the count: the tracer's thread drops images of callers that were cancelled.
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """Whether a fresh pod has all that this image holds."""
        return self.files is None and self.shm is None and not self.layers

    @classmethod
    def capture(cls, pod: _HasFiles, open_files: Collection[bytes] | None = None) -> FileImage:
        """Copy what the pod's processes wrote, while all of them are stopped. Blocks; raises OSError.

        `open_files`: paths of open files, as the pod sees them. New pods get these with the same inode numbers and in
        their own upper, where a write needs no copy-up: SQLite refuses to write through a connection whose file has
        another inode number. None: unknown, so every file keeps its number.
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
            # Layer references and the copy of /dev/shm now belong to the image.
            undo.pop_all()
        if files is not None:
            copied += files.size_bytes
        if sealed is not None:
            copied += sealed.size_bytes
            layers = (sealed, *layers)
        image = cls(files.mount if files is not None else None, shm, layers, copied)
        image.copied_bytes = copied - (sealed.size_bytes if sealed is not None else 0)
        image.owner = source.owner
        image.source = source.identity
        if (before := source.begun_with) is not None and before.generation < MOST_GENERATIONS:
            image.before, image.generation = before.keep(), before.generation + 1
        return image

    async def attach(self, attacher: Attacher, walks: Walks) -> tuple[int, ...]:
        """Attach all layers to the holder and return their numbers. First merges a chain that has grown too long.

        Raises OSError when merging fails, RametError when the holder refuses.
        """
        if len(self.layers) > MOST_LAYERS:
            if self._merging is None:
                self._merging = asyncio.create_task(self._merge(walks))
            task = self._merging
            # Shielded, as in Layer.attach: other pods of the same fork wait for this merge too.
            try:
                await asyncio.shield(task)
            except Exception:
                if self._merging is task:
                    self._merging = None
                raise
        return tuple([await layer.attach(attacher) for layer in self.layers])

    async def _merge(self, walks: Walks) -> None:
        # Hard links cannot cross from one tmpfs to another, so merging has to copy; at most once in eight large forks.
        # Own references: the image may be closed while the walk runs in its thread, which reads these mounts.
        chain = tuple(layer.keep() for layer in self.layers)
        try:
            merged = await walks.run(self.owner, lambda _: merge_layers(chain), Layer.drop)
        finally:
            for layer in chain:
                layer.drop()
        # Exchange first, drop afterwards. There is no await in between, so no task attaches a layer that was just
        # dropped.
        replaced, self.layers = self.layers, (merged,)
        for layer in replaced:
            layer.drop()
        if not replaced:  # the image was closed during the merge: release the merged layer too
            self.give_up()

    def keep(self) -> FileImage:
        """Take a reference. The caller's other one keeps it there meanwhile."""
        with self._lock:
            self._users += 1
        return self

    def in_use(self) -> contextlib.AbstractContextManager[bool]:
        """Inside, its files are not given up. The value is False if they are gone."""
        return _kept_ancestors.using(self)

    def drop(self) -> None:
        """Drop a reference. The last one releases the files, and those before them."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if not last:
            return
        _kept_ancestors.give_up(self)
        if self.before is not None:
            self.before.drop()

    def close(self) -> None:
        """The snapshot has ended. Again is harmless."""
        if self._closed:
            return
        self._closed = True
        _kept_ancestors.add(self)  # before its own reference goes: the last user may drop it at any moment
        self.drop()

    def give_up(self) -> None:
        """Release the files."""
        self.gone = True
        for descriptor in (self.files, self.shm):
            if descriptor is not None:
                os.close(descriptor)
        self.files = self.shm = None
        layers, self.layers = self.layers, ()
        for layer in layers:
            layer.drop()


def _capture_upper(source: PodFiles, open_files: Collection[bytes] | None) -> tuple[Copy | None, Layer | None]:
    """Copy the upper folders: returns what each new pod copies again, and what becomes a layer below each of them."""
    # The use of the tmpfs decides up front whether inode numbers are recorded: recording is only worth it for few
    # files.
    room = used(source.upper)
    large = room[0] > SMALL_BYTES or room[1] > SMALL_ENTRIES
    with Copy(*room) as copy:
        for name in source.names:
            if not copy.add(source.upper, name, name, numbers=not large) and not source.top_changed(name):
                # An untouched overlay must not appear in the image: each one costs every new pod a copy or a layer.
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
                # Reproducing a number means creating and dropping inodes until the tmpfs counter reaches it (about 8
                # microseconds each), so only open files keep theirs. 0 means any number.
                kept = {written.number for written in in_use}
                copy.numbers = array.array("Q", (number if number in kept else 0 for number in copy.numbers))
            copy.write_numbers()
            copy.keep()
            return copy, None
        # The layer owns the mount from here on, while `in_use` files are still to be copied.
        sealed = Layer(copy.keep(sealed=True), copy.size_bytes, copy.entries)
    try:
        return _copy_in_use(source, in_use or ()), sealed
    except BaseException:
        sealed.drop()
        raise


def _copy_in_use(source: PodFiles, in_use: Sequence[WrittenFile]) -> Copy | None:
    """Copy open files into the image as well, although the sealed layer holds them.

    In a pod above a layer the first write would copy such a file up, and give it another inode than the open descriptor
    has.
    """
    # With several hard links, the copy would no longer be the file that its other names lead to.
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
    """Merge layers, topmost first, into one with the same content. Blocks; raises OSError."""
    room = [used(layer.mount) for layer in chain]
    with Copy(sum(found[0] for found in room), sum(found[1] for found in room)) as copy:
        # From the top down: `Copy.add` fills only what a higher layer has not named yet, so whiteouts keep hiding.
        for layer in chain:
            for name in sorted(names_in(layer.mount)):
                copy.add(layer.mount, name, name)
        return Layer(copy.keep(sealed=True), copy.size_bytes, copy.entries)


def _is_below(path: str, top: str) -> bool:
    return top == "/" or path == top or path.startswith(f"{top}/")
