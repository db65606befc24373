"""Checks the recipes of an image that another store wrote, as if they were read from a hostile process.

A recipe becomes system calls of a new sandbox. The engine decides which calls; the image gives numbers, bytes and
paths, and each of them is bounded here. The sandbox makes these calls without capabilities (`SandboxRecipes.imported`),
so a path or a port that it could not reach by itself it does not reach this way either.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Sequence

from ramet.freezing.descriptors import OpenDescriptors, SharedMap, compile_calls
from ramet.freezing.descriptors.bounds import MOST_DESCRIPTORS, MOST_SHARED_BYTES, MOST_SHARED_MAPS, MOST_WATCHED
from ramet.freezing.descriptors.recipes import Description, Epoll, Line, Lock, NamedFile
from ramet.freezing.descriptors.target import LINE_NUMBERS
from ramet.freezing.images.manifest import ImageRefused, Manifest, is_place
from ramet.freezing.images.moving.thing_checks import Spent, check_thing
from ramet.freezing.images.moving.values import check_ranges, demand, is_path, is_pid
from ramet.freezing.process_state import ProcessState

_THREADS_AT_MOST = 1024
_CALLS_AT_MOST = 200_000
_CHILDREN_AT_MOST = 1024
_LINEAGE_AT_MOST = 4096  # a new pid is looked for among 29,000
_LOCKS_AT_MOST = 4096
_LARGEST_NUMBER = 65_535  # of a descriptor
_RESOURCES = 16  # kinds of resource limits
# Accepted of a description: the access mode, APPEND, NONBLOCK, DSYNC, ASYNC, DIRECT, LARGEFILE, DIRECTORY, NOFOLLOW,
# NOATIME, SYNC, PATH, TMPFILE. Not CREAT, EXCL, NOCTTY or TRUNC: the kernel does not keep them.
_FLAGS = 0o3 | 0o2000 | 0o4000 | 0o10000 | 0o20000 | 0o40000 | 0o100000 | 0o200000 | 0o400000 | 0o1000000 | 0o4000000
_FLAGS |= 0o10000000 | 0o20000000
_ENDING_SIGNALS = frozenset(range(1, 65)) - {17, 18, 19, 20, 21, 22, 23, 28}  # those that end no process, or stop it


def check_process(found: ProcessState, thread_ids: frozenset[int]) -> None:
    demand(is_path(found.folder), "its working folder")
    demand(0 <= found.umask <= 0o777, f"the umask {found.umask:o}")
    kinds = [kind for kind, _, _ in found.limits]
    demand(len(set(kinds)) == len(kinds) and set(kinds) <= set(range(_RESOURCES)), "an unknown resource limit")
    for kind, soft, hard in found.limits:
        demand(-1 <= soft < 1 << 64 and -1 <= hard < 1 << 64, f"a resource limit ({kind})")
        demand(hard == -1 or soft % (1 << 64) <= hard, f"a resource limit above itself ({kind})")
    demand(len(found.timers) <= 3 and all(len(timer) == 32 for timer in found.timers), "its interval timers")
    pids = [pid for pid, _ in found.children]
    demand(len(pids) <= _CHILDREN_AT_MOST and len(set(pids)) == len(pids), f"{len(pids)} children")
    for pid, status in found.children:
        demand(is_pid(pid) and pid not in thread_ids, f"a child with the pid {pid}")
        signal = status & 0x7F
        demand(0 <= status <= 0xFFFF and (not signal or signal in _ENDING_SIGNALS), f"a child that ended as {status}")


def check_ids(
    thread_ids: frozenset[int], lineage: frozenset[int], kept_pid: int | None, children: Iterable[int]
) -> None:
    demand(len(thread_ids) < _THREADS_AT_MOST and all(map(is_pid, thread_ids)), "its threads")
    demand(len(lineage) <= _LINEAGE_AT_MOST and all(map(is_pid, lineage)), "its ancestors")
    taken = {*thread_ids, *children}
    demand(kept_pid is None or (is_pid(kept_pid) and kept_pid not in taken), f"the pid {kept_pid}")


def check_descriptors(found: OpenDescriptors) -> OpenDescriptors:
    """The same, with files that need not be there: a sandbox without capabilities may not open each again."""
    demand(is_pid(found.pid), f"the pid {found.pid}")
    descriptions = found.descriptions
    numbers = [place.number for each in descriptions for place in each.places]
    demand(0 < len(numbers) <= MOST_DESCRIPTORS, f"{len(numbers)} descriptors")
    demand(len(set(numbers)) == len(numbers), "a descriptor that is open twice")
    demand(all(0 <= number <= _LARGEST_NUMBER for number in numbers), "a descriptor beyond any limit")
    demand(all(each.places for each in descriptions), "a description without a number")
    demand(sum(len(each.locks) for each in descriptions) <= _LOCKS_AT_MOST, "too many locks of files")
    demand(len(found.lost) <= MOST_DESCRIPTORS, "too many lost descriptors")
    watched = [entry for each in descriptions if isinstance(each.thing, Epoll) for entry in each.thing.watched]
    demand(len(watched) <= MOST_WATCHED, f"{len(watched)} entries of epolls")
    for entry in watched:
        demand(0 <= entry.target < len(descriptions) and 0 <= entry.number <= _LARGEST_NUMBER, "an entry of an epoll")
    spent = Spent()
    for each in descriptions:
        demand(not each.flags & ~_FLAGS and each.flags >= 0, f"the flags {each.flags:o} of a descriptor")
        demand(0 <= each.position < 1 << 63, f"the position {each.position} of a descriptor")
        for lock in each.locks:
            _check_lock(lock)
        check_thing(each.thing, spent)
    _check_lines(descriptions)
    return dataclasses.replace(found, descriptions=tuple(map(_unexpected, descriptions)))


def check_compiles(found: OpenDescriptors, maps: Sequence[SharedMap], children: Iterable[int]) -> None:
    """Check that they fit together: a thaw compiles them on the engine's loop, which handles no failure there."""
    try:
        count = len(compile_calls(found, maps, 2, {pid: pid for pid in children}))
    except (ValueError, LookupError, TypeError, AssertionError, OSError, struct.error, OverflowError) as error:
        raise ImageRefused(f"the open files of the image do not fit together: {error!r:.80}") from error
    demand(count <= _CALLS_AT_MOST, f"{count} system calls")


def _unexpected(each: Description) -> Description:
    if isinstance(each.thing, NamedFile):
        return dataclasses.replace(each, thing=dataclasses.replace(each.thing, expected=False))
    return each


def _check_lock(lock: Lock) -> None:
    demand(lock.kind in ("FLOCK", "POSIX", "OFDLCK"), "an unknown lock of a file")
    demand(0 <= lock.start < 1 << 62 and 0 <= lock.length < 1 << 62, "a lock beyond the end of any file")


def _check_lines(descriptions: Sequence[Description]) -> None:
    lines = [each.thing.number for each in descriptions if isinstance(each.thing, Line)]
    demand(len(set(lines)) == len(lines) and set(lines) <= set(LINE_NUMBERS), "lines to the engine")


def check_maps(maps: Sequence[SharedMap], manifest: Manifest) -> None:
    """Shared memory replaces what lies at its address: it may lie only where the image itself has memory."""
    demand(len(maps) <= MOST_SHARED_MAPS, f"{len(maps)} shared mappings")
    before = 0
    for each in sorted(maps, key=lambda each: each.start):
        end = each.start + each.length
        demand(each.length > 0 and is_place(each.start, end) and each.start >= before, "a shared mapping elsewhere")
        demand(
            all(end <= start or each.start >= stop for _, start, stop in manifest.kernels_areas), "the kernel's area"
        )
        demand(0 <= each.protection <= 7, "the protection of a shared mapping")
        demand(0 <= each.offset < 1 << 62 and each.offset % 4096 == 0, "the offset of a shared mapping")
        demand(each.path is None or is_path(each.path), "the file of a shared mapping")
        check_ranges(each.ranges)
        before = end
    demand(sum(each.copied_bytes for each in maps) <= MOST_SHARED_BYTES, "too much shared memory")
