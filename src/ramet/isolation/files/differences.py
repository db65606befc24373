"""How the files of two pods differ, found without reading what they share.

Two pods see the same trees below their writable layers, and forks share sealed layers too. Only names in layers that
one of them has alone can differ. What these names are in each pod is then read through the pod's own mounts, where the
kernel has combined the layers. The trees belong to untrusted code and may change meanwhile: each step opens one name
below a descriptor, follows no link, crosses into no other mount, and reads only files and folders. The work is bounded
in bytes and seconds, and holes of sparse files are not read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import Protocol

from ramet.errors import LimitReached
from ramet.isolation import _files
from ramet.isolation.files.layers import Layer, PodFiles
from ramet.isolation.files.walks import Stop
from ramet.isolation.kernel import syscalls
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.differences import ChangeKind, FileChange, FileState
from ramet.protocol.values.results import FileType

MOST_CHANGES = 100_000
MOST_READ_BYTES = 16 << 30  # in one comparison: the contents of both sandboxes, and again for their digests
MOST_DIGESTED_BYTES = 4 << 30  # per file; a digest also has to read holes
READING_SECONDS = 20.0  # after this no more content is read
WALKING_SECONDS = 60.0
_PIECE_BYTES = 1 << 20
_DEEPEST = 500  # the same depth as a fork copies
_SHM = "/dev/shm"
# The guest's own commands for tools, present once it was given some; not the user's work.
_OF_THE_GUEST = ("run", "ramet")
_OPAQUE = "user.overlay.opaque"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Parts = tuple[str, ...]


class ComparedPod(Protocol):
    @property
    def root(self) -> int: ...
    @property
    def files(self) -> PodFiles: ...


def diff_files(
    one: ComparedPod, other: ComparedPod, paths: Sequence[str] | None = None, stop: Stop | None = None
) -> tuple[FileChange, ...]:
    """List the changes that would turn `one` into `other`, sorted by path. Blocks.

    `paths`: only what is at or below one of these. Raises LimitReached for too many names or differences, WalkCancelled
    when asked to stop. Files with more content than may be read are reported as modified and approximate.
    """
    wanted = None if paths is None else tuple(_parts(path) for path in paths)
    found: list[FileChange] = []
    reading = _ComparisonBudget(stop or Stop())
    with contextlib.ExitStack() as opened:
        for mount in _mounts(one, other, opened):
            _Comparison(mount, wanted, found, reading).run()
    return tuple(sorted(found, key=lambda change: change.path))


class _ComparisonBudget:
    """The remaining budget of one comparison."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._bytes_left = MOST_READ_BYTES
        began = time.monotonic()
        self._read_until = began + READING_SECONDS
        self._walk_until = began + WALKING_SECONDS

    def step(self) -> None:
        """Check limits; called before each name that is examined."""
        self._stop.check()
        if time.monotonic() > self._walk_until:
            raise LimitReached(
                f"there are too many files to compare within {WALKING_SECONDS:.0f} seconds",
                hint="compare less: diff(other, paths=[...])",
            )

    def same(self, one: int, other: int, name: str) -> bool | None:
        """Whether both folders have the same file under this name. None: it is too large to decide."""
        verdict, read = _files.compare_files(one, other, name, self._bytes_left, self._read_until, self._stop.flag)
        self._bytes_left -= read
        self._stop.check()
        return None if verdict < 0 else verdict == 1

    def digest(self, file: io.FileIO, size_bytes: int) -> str | None:
        """Digest of a file that had this size when it was opened. None: it is too large, or grew while it was read."""
        if size_bytes > min(MOST_DIGESTED_BYTES, self._bytes_left):
            return None
        digest, left = hashlib.sha256(), size_bytes
        while piece := file.read(_PIECE_BYTES):
            self._stop.check()
            left -= len(piece)
            self._bytes_left -= len(piece)
            # Checked after each piece, because the sandbox may append faster than we read.
            if left < 0 or self._bytes_left < 0 or time.monotonic() > self._read_until:
                return None
            digest.update(piece)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Mount:
    """One file system of both pods, with those of its layers that only one of them has."""

    path: Parts
    one: int
    other: int
    layers: tuple[int, ...]


def _mounts(one: ComparedPod, other: ComparedPod, opened: contextlib.ExitStack) -> list[_Mount]:
    """Open everything before comparing anything: a pod may be closed meanwhile."""

    def keep(descriptor: int) -> int:
        opened.callback(os.close, descriptor)
        return descriptor

    def folder(parent: int, name: str) -> Iterator[int]:
        with contextlib.suppress(FileNotFoundError):  # a layer that has nothing for this file system
            yield keep(os.open(name, _FOLDER, dir_fd=parent))

    own = _own_layers(one.files.layers, other.files.layers)
    mounts = []
    for name, path in one.files.overlays:
        if (name, path) not in other.files.overlays:
            continue  # the tree of another interpreter
        parents = [one.files.upper, other.files.upper, *(layer.mount for layer in own)]
        layers = tuple(layer for parent in parents for layer in folder(parent, name))
        roots = [keep(syscalls.open_in_root(pod.root, path, _FOLDER, follow_links=False)) for pod in (one, other)]
        mounts.append(_Mount(_parts(path), roots[0], roots[1], layers))
    shared = [keep(os.open(".", _FOLDER, dir_fd=pod.files.shm)) for pod in (one, other)]
    mounts.append(_Mount(_parts(_SHM), shared[0], shared[1], tuple(shared)))
    return mounts


def _own_layers(one: Sequence[Layer], other: Sequence[Layer]) -> list[Layer]:
    """The layers that only one of the two has. Layers in common are at the bottom of both chains."""
    shared = 0
    for mine, theirs in zip(reversed(one), reversed(other), strict=False):
        if mine is not theirs:
            break
        shared += 1
    return [*one[: len(one) - shared], *other[: len(other) - shared]]


@dataclass(slots=True)
class _Names:
    """Names that may differ, as a tree."""

    below: dict[str, _Names] = field(default_factory=dict)
    whole: bool = False  # everything below may differ as well


@dataclass(slots=True)
class _Level:
    """A folder of one or both pods during the walk."""

    parts: Parts
    one: int | None
    other: int | None
    names: Iterator[tuple[str, _Names]]

    def close(self) -> None:
        for descriptor in (self.one, self.other):
            if descriptor is not None:
                os.close(descriptor)


class _Comparison:
    """The comparison of one mount."""

    def __init__(
        self, mount: _Mount, wanted: tuple[Parts, ...] | None, found: list[FileChange], reading: _ComparisonBudget
    ) -> None:
        self._mount = mount
        self._wanted = wanted
        self._found = found
        self._reading = reading
        self._levels: list[_Level] = []

    # An explicit stack instead of recursion: the sandbox chooses the depth.
    def run(self) -> None:
        top = self._mount.path
        if not self._may_hold_wanted(top):
            return
        names = _Names()
        for layer in self._mount.layers:
            self._collect(layer, names)
        before, after = (_state(os.fstat(root)) for root in (self._mount.one, self._mount.other))
        if before != after and self._is_wanted(top):
            self._note(top, before, after)
        # Duplicates, because each level closes its own descriptors and the mount's stay with `_mounts`.
        try:
            self._enter(top, os.dup(self._mount.one), os.dup(self._mount.other), names)
            while self._levels:
                self._reading.step()
                level = self._levels[-1]
                following = next(level.names, None)
                if following is None:
                    self._levels.pop().close()
                elif self._may_hold_wanted((*level.parts, following[0])):
                    self._compare(level, *following)
        finally:
            for level in self._levels:
                level.close()

    def _is_wanted(self, parts: Parts) -> bool:
        return self._wanted is None or any(parts[: len(wanted)] == wanted for wanted in self._wanted)

    def _may_hold_wanted(self, parts: Parts) -> bool:
        return self._wanted is None or any(
            all(mine == theirs for mine, theirs in zip(parts, wanted, strict=False)) for wanted in self._wanted
        )

    def _collect(self, layer: int, names: _Names) -> None:
        """Add the names of a layer, including whiteouts: a removed file is a difference."""
        levels: list[tuple[int, Iterator[os.DirEntry[str]], _Names, Parts]] = []

        def enter(descriptor: int, node: _Names, parts: Parts) -> None:
            levels.append((descriptor, _scan(descriptor), node, parts))

        enter(os.dup(layer), names, self._mount.path)
        try:
            while levels:
                self._reading.step()
                descriptor, entries, node, parts = levels[-1]
                entry = next(entries, None)
                if entry is None:
                    os.close(levels.pop()[0])
                    continue
                reached = (*parts, entry.name)
                if not self._may_hold_wanted(reached):
                    continue
                child = node.below.setdefault(entry.name, _Names())
                if entry.is_dir(follow_symlinks=False) and not child.whole:
                    # Removed or replaced since it was listed.
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        below = os.open(entry.name, _FOLDER, dir_fd=descriptor)
                        # An opaque folder hides everything below it in lower layers, so all of that may differ.
                        child.whole = _is_opaque(below)
                        if child.whole or len(levels) == _DEEPEST:
                            child.whole = True
                            os.close(below)
                        else:
                            enter(below, child, reached)
        finally:
            for descriptor, *_ in levels:
                os.close(descriptor)

    def _enter(self, parts: Parts, one: int | None, other: int | None, names: _Names) -> None:
        """Start on a folder. Takes both descriptors."""
        level = _Level(parts, one, other, iter(()))
        self._levels.append(level)
        # Pushed before the check, so that `run` closes the descriptors in any case.
        if len(self._levels) > _DEEPEST:
            raise LimitReached(f"folders are nested deeper than {_DEEPEST} levels, at /{'/'.join(parts)[:200]}")
        if names.whole or one is None or other is None:
            present = {entry.name for folder in (one, other) if folder is not None for entry in _scan(folder)}
            everything = _Names(whole=True)
            level.names = iter([(name, everything) for name in sorted(present)])
        else:
            level.names = iter(sorted(names.below.items()))

    def _compare(self, level: _Level, name: str, names: _Names) -> None:
        parts = (*level.parts, name)
        if parts == _OF_THE_GUEST:
            return
        same: bool | None = False
        if level.one is not None and level.other is not None:
            # In C, one name at a time. Files that are equal are never opened by Python.
            same = self._reading.same(level.one, level.other, name)
            if same:
                return  # the usual case
        with contextlib.ExitStack() as opened:
            try:
                one, other = _look(level.one, name, opened), _look(level.other, name, opened)
            except _OtherMountError:
                return
            if self._is_wanted(parts) and _may_differ(one, other):
                self._compare_states(parts, one, other, same)
            folders = [_open_folder(found) for found in (one, other)]
        # After the `with`: the folders are open on their own, and the O_PATH descriptors are closed.
        if any(folder is not None for folder in folders):
            self._enter(parts, folders[0], folders[1], names)

    def _compare_states(self, parts: Parts, one: _Found | None, other: _Found | None, same: bool | None) -> None:
        before, after = _digested(one, self._reading, same), _digested(other, self._reading, same)
        if before != after or _kind(one) != _kind(other):
            self._note(parts, before, after)
        elif before is not None and before.type == "file" and before.digest is None:
            # The contents differ but are too large for a digest; or, if approximate, too large to be compared at all.
            self._note(parts, before, after, approximate=same is None)

    def _note(self, parts: Parts, before: FileState | None, after: FileState | None, approximate: bool = False) -> None:
        kind: ChangeKind = "added" if before is None else "removed" if after is None else "modified"
        self._found.append(FileChange("/" + "/".join(parts), kind, before, after, approximate))
        if len(self._found) > MOST_CHANGES:
            raise LimitReached(f"more than {MOST_CHANGES} files differ", hint="compare less: diff(other, paths=[...])")


@dataclass(frozen=True, slots=True)
class _Found:
    descriptor: int  # O_PATH
    kind: int  # file type bits of the mode
    state: FileState


class _OtherMountError(Exception):
    """The name is a mount point: another comparison covers it, or it belongs to the host."""


def _look(folder: int | None, name: str, opened: contextlib.ExitStack) -> _Found | None:
    if folder is None:
        return None
    try:
        descriptor = syscalls.open_below(folder, name, os.O_PATH | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise _OtherMountError from None
        raise
    opened.callback(os.close, descriptor)
    found = os.fstat(descriptor)
    target = None
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink("", dir_fd=descriptor)
    return _Found(descriptor, stat.S_IFMT(found.st_mode), _state(found, target))


def _state(found: os.stat_result, target: str | None = None) -> FileState:
    kind: FileType = "other"
    if stat.S_ISREG(found.st_mode):
        kind = "file"
    elif stat.S_ISDIR(found.st_mode):
        kind = "folder"
    elif stat.S_ISLNK(found.st_mode):
        kind = "link"
    # The size of a folder means something else in each file system.
    size = found.st_size if kind in ("file", "link") else 0
    return FileState(kind, size, stat.S_IMODE(found.st_mode), target=target)


def _kind(found: _Found | None) -> int:
    return found.kind if found is not None else 0


def _may_differ(one: _Found | None, other: _Found | None) -> bool:
    """Whether two entries may differ.

    Files of the same size and mode still may: `_ComparisonBudget.same` has found that they are not equal.
    """
    if one is None or other is None:
        return one is not other
    return one.state.type == "file" or one.state != other.state or one.kind != other.kind


def _digested(found: _Found | None, reading: _ComparisonBudget, same: bool | None) -> FileState | None:
    """The state with a digest of the content, unless there was too much to compare in the first place."""
    if found is None or found.state.type != "file" or same is None:
        return None if found is None else found.state
    # Opened through /proc, this is the inode that was examined, whatever has its name by now. O_NONBLOCK, because
    # opening a FIFO would otherwise wait for a writer.
    descriptor = os.open(f"/proc/self/fd/{found.descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        return replace(found.state, digest=reading.digest(file, found.state.size_bytes))


def _open_folder(found: _Found | None) -> int | None:
    if found is None or found.state.type != "folder":
        return None
    try:
        return os.open(".", _FOLDER, dir_fd=found.descriptor)
    except FileNotFoundError:
        return None  # removed meanwhile


def _scan(folder: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE)[:1] == b"y"
    except OSError:
        return False


def _parts(path: str) -> Parts:
    return tuple(name for name in path.split("/") if name not in ("", "."))
