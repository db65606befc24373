"""Shared mappings: found in the pause, made private in the frozen memory at once, and shared again in each copy."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ramet.errors import ForkFailed
from ramet.freezing import _core
from ramet.freezing.calls import InjectedCall
from ramet.freezing.descriptors.bounds import MOST_HOLES_BYTES, MOST_SHARED_BYTES, MOST_SHARED_MAPS, too_much
from ramet.freezing.descriptors.calls import CallList
from ramet.freezing.descriptors.recipes import Memory, Ranges
from ramet.freezing.descriptors.target import PausedProcess
from ramet.isolation.files.skeleton import system_folders
from ramet.isolation.kernel.syscall_numbers import X86_64
from ramet.isolation.kernel.syscalls import find_in_root
from ramet.protocol.lazy_dataclasses import dataclass

_LINE = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) (..)(.)s ([0-9a-f]+) [0-9a-f]+:[0-9a-f]+ (\d+) *(.*)")
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_DELETED = b" (deleted)"
_ANONYMOUS = b"/dev/zero (deleted)"  # the kernel's name for shared memory without a file
_PROT_READ, _PROT_WRITE = 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 1, 2, 0x10, 0x20, 0x4000
_MFD_CLOEXEC = 1
_MOST_AT_ONCE = 1 << 30  # one write moves less than 2 GiB
_COPY_BYTES_PER_SECOND = 100_000_000  # a lower bound


_SYSTEM = tuple(f"{folder}/".encode() for folder in system_folders())


@dataclass(frozen=True, slots=True)
class SharedMap:
    """A range of shared memory.

    With a path it is that file in each copy's own tree; otherwise the copy gets its contents.
    """

    start: int
    length: int
    protection: int
    offset: int
    memory: Memory
    path: bytes | None
    whole: bool  # every page can be read: no end of a file lies within
    ranges: Ranges | None = None  # where the file has data; None: unknown, because no process has it open

    def pieces(self) -> Iterator[tuple[int, int]]:
        """(offset from its start, length) of what must be copied. Holes stay holes."""
        for first, last in ((0, self.offset + self.length),) if self.ranges is None else self.ranges:
            begin, end = max(first - self.offset, 0), min(last - self.offset, self.length)
            for at in range(begin, end, _MOST_AT_ONCE):
                yield at, min(_MOST_AT_ONCE, end - at)

    @property
    def copied_bytes(self) -> int:
        return 0 if self.path is not None else sum(length for _, length in self.pieces())


def read_shared_maps(target: PausedProcess) -> tuple[SharedMap, ...]:
    """Read the shared mappings of a paused process. Raises ForkFailed."""
    try:
        maps = os.open(f"/proc/{target.pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = _query(target, maps)
            if found is None:
                found = _parse(target, maps)
        finally:
            os.close(maps)
    except OSError as error:
        raise ForkFailed(f"the sandbox cannot be copied: reading its shared memory failed: {error!r}") from error
    return tuple(found)


def with_ranges(maps: Sequence[SharedMap], known: Mapping[Memory, Ranges]) -> tuple[SharedMap, ...]:
    return tuple(replace(each, ranges=known.get(each.memory)) for each in maps) if known else tuple(maps)


def check_amount(maps: Sequence[SharedMap], counted_bytes: int) -> float:
    """How many seconds copying may take. Raises ForkFailed if it is too much.

    Everyone in the pod waits for it, so this depends on the data that exists, not on the sizes of mappings.
    ``counted_bytes``: all memory charged to the sandbox; 0 if it is not counted. The kernel cannot be asked for the
    holes of memory without an open descriptor, and copying a hole fills it. If most of it must be holes, it is refused
    at once.
    """
    if sum(each.copied_bytes for each in maps) > MOST_SHARED_BYTES:
        raise too_much(f"it shares more than {MOST_SHARED_BYTES >> 30} GiB of memory without a name")
    known = sum(each.copied_bytes for each in maps if each.ranges is not None)
    unknown = sum(each.copied_bytes for each in maps if each.ranges is None)
    if counted_bytes:
        if unknown - counted_bytes > MOST_HOLES_BYTES:
            raise too_much(
                f"it shares {unknown >> 20} MiB of memory without a name, and uses {counted_bytes >> 20} MiB at most",
                hint="map less of it, keep its descriptor open, or give it a name in /dev/shm",
            )
        unknown = min(unknown, counted_bytes)
    return (known + unknown) / _COPY_BYTES_PER_SECOND


def _query(target: PausedProcess, maps: int) -> list[SharedMap] | None:
    """Ask the kernel with PROCMAP_QUERY. None before Linux 6.11."""
    ranges = _core.shared_maps(maps, MOST_SHARED_MAPS + 1)
    if ranges is None:
        return None
    found = [
        _shared_map(target, start, end, protection, offset, inode, name)
        for start, end, protection, offset, inode, name in ranges
        if not _is_the_systems(protection, name)
    ]
    _check_count(found)
    return found


def _parse(target: PausedProcess, maps: int) -> list[SharedMap]:
    """Parse /proc/<pid>/maps."""
    found: list[SharedMap] = []
    with os.fdopen(os.dup(maps), "rb") as lines:
        # Read line by line: a hostile process may have very many mappings, and the count is checked after each.
        for line in lines:
            match = _LINE.fullmatch(line.rstrip(b"\n"))
            if match is None:
                continue
            protection = sum(bit for letter, bit in zip(match[3] + match[4], (1, 2, 4), strict=True) if letter != 0x2D)
            # The kernel escapes a newline in a name as octal, but not a backslash.
            name = _ESCAPE.sub(lambda escape: bytes((int(escape[1], 8) & 255,)), match[7])
            if not _is_the_systems(protection, name):
                start, end, offset, inode = int(match[1], 16), int(match[2], 16), int(match[5], 16), int(match[6])
                found.append(_shared_map(target, start, end, protection, offset, inode, name))
            _check_count(found)
    return found


def _is_the_systems(protection: int, name: bytes) -> bool:
    """Whether it is a file of the host that no sandbox can write, such as the C library's tables.

    It may stay shared.
    """
    return not protection & _PROT_WRITE and name.startswith(_SYSTEM)


def _check_count(found: list[SharedMap]) -> None:
    if len(found) > MOST_SHARED_MAPS:
        raise too_much(f"it has more than {MOST_SHARED_MAPS} shared mappings")


def _shared_map(
    target: PausedProcess, start: int, end: int, protection: int, offset: int, inode: int, name: bytes
) -> SharedMap:
    path = None
    # A mapping of a file with a path is that file again in the copy's own tree, where others may map it too.
    if name.startswith(b"/") and not name.endswith(_DELETED) and _is_file(target, name):
        path = name
    return SharedMap(start, end - start, protection, offset, (inode, name), path, name == _ANONYMOUS)


def _is_file(target: PausedProcess, path: bytes) -> bool:
    """Whether a path is a regular file.

    Not compared by inode: an overlay shows other inodes in /proc/<pid>/maps than in stat. The name of a deleted file
    says so.
    """
    try:
        found = find_in_root(target.root, path)
    except (OSError, ValueError):
        return False
    try:
        return stat.S_ISREG(os.fstat(found).st_mode)
    finally:
        os.close(found)


def covers(maps: Iterable[SharedMap], memory: Memory, size: int) -> bool:
    """Whether every byte of this file is in a readable mapping."""
    position = 0
    for each in sorted((each for each in maps if each.memory == memory), key=lambda each: each.offset):
        if each.offset <= position and each.path is None and each.protection & _PROT_READ:
            position = max(position, each.offset + each.length)
    return position >= size


def privatize(maps: Sequence[SharedMap]) -> list[InjectedCall]:
    """Calls for the frozen copy of the memory, which has an empty table of descriptors.

    Afterwards it shares nothing with the process it was copied from, whatever that one writes later.
    """
    calls: list[InjectedCall] = []

    def add(name: str, system_call: str, *arguments: int | bytes, must_work: bool = True) -> None:
        calls.append(InjectedCall(name, X86_64[system_call], arguments, must_work))

    for each in maps:
        if each.path is not None:
            # A copy maps its own file here later. Until then the frozen memory must not keep the original's.
            flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
            add("let go of a shared file", "mmap", each.start, each.length, 0, flags, -1, 0)
            continue
        if not each.protection & _PROT_READ:
            add("make shared memory readable", "mprotect", each.start, each.length, _PROT_READ, must_work=False)
        # With an empty table every new descriptor is 0.
        add("make room for shared memory", "memfd_create", b"shared\0", _MFD_CLOEXEC)
        add("size the room", "ftruncate", 0, each.length)
        for at, length in each.pieces():
            # pwrite from the mapping itself. Past the end of a file pages cannot be read and the call is cut short
            # (EFAULT), so it must only succeed where there is no such end.
            add("copy shared memory", "pwrite64", 0, each.start + at, length, at, must_work=each.whole)
        flags = _MAP_PRIVATE | _MAP_FIXED
        # MAP_FIXED replaces the shared mapping in one step, at the same address.
        add("keep the copy", "mmap", each.start, each.length, each.protection, flags, 0, 0)
        add("close the room", "close", 0)
    return calls


def share_again(script: CallList, maps: Sequence[SharedMap], files: Mapping[Memory, tuple[int, int]]) -> None:
    """Map shared memory in the copy. `files`: slots and sizes of nameless files that are open as well."""
    nameless: dict[Memory, list[SharedMap]] = {}
    for each in maps:
        if each.path is None:
            nameless.setdefault(each.memory, []).append(each)
        else:
            _map_named(script, each, each.path)
    for memory, ranges in nameless.items():
        if memory in files:
            slot, size = files[memory]
        else:
            size = max(each.offset + each.length for each in ranges)
            slot = script.create("make shared memory", "memfd_create", b"shared\0", _MFD_CLOEXEC)
            script.call("size shared memory", "ftruncate", slot, size)
        for each in ranges:
            _write_range(script, each, slot, size)
        for each in ranges:
            flags = _MAP_SHARED | _MAP_FIXED
            script.call("share memory", "mmap", each.start, each.length, each.protection, flags, slot, each.offset)
        if memory not in files:
            script.drop(slot)


def _write_range(script: CallList, each: SharedMap, slot: int, size: int) -> None:
    """Write a range from the copy's own memory, which holds the contents since the freeze."""
    if not each.protection & _PROT_READ:
        script.call("make memory readable", "mprotect", each.start, each.length, _PROT_READ)
    end = min(each.length, size - each.offset)
    for at, length in each.pieces():
        if at >= end:
            break
        length = min(length, end - at)
        script.call("fill shared memory", "pwrite64", slot, each.start + at, length, each.offset + at)


def _map_named(script: CallList, each: SharedMap, path: bytes) -> None:
    name = f"map {os.fsdecode(path)!r} again"
    access = os.O_RDWR if each.protection & _PROT_WRITE else os.O_RDONLY
    # O_NONBLOCK and O_NOFOLLOW, because something else may be at that path by now.
    slot = script.create(name, "open", path + b"\0", access | os.O_NOFOLLOW | os.O_NONBLOCK, 0)
    script.call(name, "mmap", each.start, each.length, each.protection, _MAP_SHARED | _MAP_FIXED, slot, each.offset)
    script.drop(slot)
