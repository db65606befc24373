"""Which files one sandbox would take from another, and where both have changed the same since their common ancestor."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from posixpath import dirname

from ramet.isolation.files.differences import ComparedPod, diff_files
from ramet.isolation.files.walks import Stop
from ramet.isolation.kernel import syscalls
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.differences import FileChange, FileState

_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The changes to carry out, by path, and what stands in their way."""

    changes: tuple[FileChange, ...] = ()
    conflicts: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()  # neither files, folders, links nor fifos
    missing: tuple[str, ...] = ()  # paths that were asked for and that the other sandbox never had


def plan_files(
    base: ComparedPod,
    ours: ComparedPod,
    theirs: ComparedPod,
    wanted: Sequence[str] | None,
    prefer: str | None,
    stop: Stop,
) -> FilePlan:
    """Compare three pods. Blocks. Raises LimitReached, WalkCancelled.

    ``wanted``: absolute paths and patterns; None: everything. ``prefer``: "ours" or "theirs" where both have changed
    the same; None leaves that to the caller, as a conflict.
    """
    places = None if wanted is None else tuple(dict.fromkeys(_fixed_part(path) for path in wanted))
    matches = _matcher(wanted)
    mine = {change.path: change for change in diff_files(base, ours, places, stop)}
    changes = [change for change in diff_files(base, theirs, places, stop) if matches(change.path)]
    taken: list[FileChange] = []
    conflicts: list[str] = []
    refused: list[str] = []
    folders = _Folders(base, ours)
    for change in changes:  # by path: a folder comes before what is in it
        stop.check()
        if change.after is not None and change.after.type == "other" and not _is_fifo(theirs, change.path):
            refused.append(change.path)
            continue
        own = mine.get(change.path)
        if own is not None and _same(own, change):
            folders.come(change)
            continue
        against = _changed_below(mine, change) if own is None else [change.path]
        if not against and change.after is not None and not folders.there(change.path):
            against = [change.path]
        if against and prefer is None:
            conflicts += against
        elif not against or prefer == "theirs":
            taken.append(change)
            folders.come(change)
    missing = [path for path in wanted or () if not _WILD.search(path) and not _known(path, changes, theirs)]
    return FilePlan(
        tuple(sorted([*taken, *_implied(taken, ours, theirs)], key=lambda change: change.path)),
        tuple(sorted(set(conflicts))),
        tuple(refused),
        tuple(missing),
    )


def _same(one: FileChange, other: FileChange) -> bool:
    """Whether two changes of the same path have led to the same. Contents that were not read may differ."""
    if one.after != other.after or one.approximate or other.approximate:
        return False
    return one.after is None or one.after.type in ("folder", "link") or one.after.digest is not None


def _changed_below(mine: dict[str, FileChange], change: FileChange) -> list[str]:
    """What is new or changed of ours in a folder that they have removed or replaced."""
    if not _is_folder(change.before) or _is_folder(change.after):
        return []
    top = f"{change.path}/"
    return [path for path, own in mine.items() if path.startswith(top) and own.after is not None]


class _Folders:
    """Tells whether a path has a folder to be in: one that is there, or that comes with it."""

    def __init__(self, base: ComparedPod, ours: ComparedPod) -> None:
        self._base = base
        self._ours = ours
        self._known: dict[str, bool] = {"/": True}

    def come(self, change: FileChange) -> None:
        """It is taken, or there already."""
        if _is_folder(change.after):
            self._known[change.path] = True

    def there(self, path: str) -> bool:
        above = dirname(path)
        if above not in self._known:
            mode = mode_at(self._ours, above)
            if mode is not None:
                self._known[above] = stat.S_ISDIR(mode)
            else:
                # One that we had and have removed is not made again by itself.
                self._known[above] = mode_at(self._base, above) is None and self.there(above)
        return self._known[above]


def _implied(taken: Iterable[FileChange], ours: ComparedPod, theirs: ComparedPod) -> list[FileChange]:
    """The folders above what is taken that we do not have."""
    made = {change.path for change in taken if _is_folder(change.after)}
    removed = {change.path for change in taken if not _is_folder(change.after)}
    found: list[FileChange] = []
    for change in taken:
        above = dirname(change.path)
        while change.after is not None and above not in made and above != "/":
            mode = mode_at(ours, above)
            if mode is not None and stat.S_ISDIR(mode) and above not in removed:
                break
            wanted = mode_at(theirs, above)
            permissions = 0o755 if wanted is None else stat.S_IMODE(wanted)
            made.add(above)
            found.append(FileChange(above, "added", None, FileState("folder", 0, permissions)))
            above = dirname(above)
    return found


def _is_folder(state: FileState | None) -> bool:
    return state is not None and state.type == "folder"


def _is_fifo(pod: ComparedPod, path: str) -> bool:
    return stat.S_ISFIFO(mode_at(pod, path) or 0)


def mode_at(pod: ComparedPod, path: str) -> int | None:
    """The type and mode of what is at a path, or None. No link is followed: nothing is behind one."""
    try:
        descriptor = syscalls.open_in_root(pod.root, path, os.O_PATH | os.O_NOFOLLOW, follow_links=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            return None
        raise
    try:
        return os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)


def _known(path: str, changes: Iterable[FileChange], theirs: ComparedPod) -> bool:
    return mode_at(theirs, path) is not None or any(
        change.path == path or change.path.startswith(f"{path}/") for change in changes
    )


def _fixed_part(path: str) -> str:
    """The folder in which all that a pattern matches must be; a path without a pattern itself."""
    found = _WILD.search(path)
    return path if found is None else path[: found.start()].rpartition("/")[0] or "/"


def _matcher(wanted: Sequence[str] | None) -> Callable[[str], bool]:
    if wanted is None:
        return lambda _: True
    fixed = {path for path in wanted if not _WILD.search(path)}
    patterns = [tuple(path.strip("/").split("/")) for path in wanted if path not in fixed]

    def matches(path: str) -> bool:
        names = path.strip("/").split("/")
        above = ("/" + "/".join(names[:length]) for length in range(len(names) + 1))
        return not fixed.isdisjoint(above) or any(_matches(names, pattern) for pattern in patterns)

    return matches


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a pattern matches a path or a folder above it. ``*`` stays within a name, ``**`` is any folders.

    All places that the pattern may have reached are followed at once, so that no pattern takes long.
    """
    reached = _after_any({0}, pattern)
    for name in names:
        onwards = set()
        for place in reached:
            if place == len(pattern):
                return True
            if pattern[place] == "**":
                onwards.add(place)
            elif fnmatchcase(name, pattern[place]):
                onwards.add(place + 1)
        reached = _after_any(onwards, pattern)
    return len(pattern) in reached


def _after_any(places: set[int], pattern: Sequence[str]) -> set[int]:
    """With the places behind each ``**``, which may also stand for no folder at all."""
    found = set(places)
    for place in places:
        while place < len(pattern) and pattern[place] == "**":
            place += 1
            found.add(place)
    return found
