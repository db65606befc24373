"""From an image to the calls that an empty process makes. What is called is decided here; the image gives numbers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping

from ramet.freezing.calls import AT_FDCWD, InjectedCall, call
from ramet.freezing.images.manifest import ASIDE, FILE, FILLED, PAGES, TOP, ImageRefused, Manifest, Segment
from ramet.freezing.images.memory import GROWS_DOWN, NO_RESERVE, PRIVATE, READ, SHARED, WRITE
from ramet_guest.wire import SCRATCH_START

_MOVE_TO = 3  # MREMAP_MAYMOVE | MREMAP_FIXED
_ANONYMOUS, _FIXED_NOREPLACE = 0x20, 0x100000  # MAP_...
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_LISTS_BYTES_AT_MOST = 1 << 30
_FILLING = struct.Struct("<4Q")
_KILL, _STOP = 9, 19  # have no handlers


def map_calls(manifest: Manifest, here: Mapping[str, tuple[int, int]]) -> tuple[InjectedCall, ...]:
    """The calls that replace the memory of an empty process by that of the image, still without its pages.

    ``here``: where the kernel has put its own areas into the process. What is to be filled is writable until
    `protect_calls`.
    """
    return (
        *_clear(manifest, here),
        *(each for segment in manifest.segments if segment.kind != FILE for each in _map(segment)),
        *_map_files(manifest),
        *_handlers(manifest.actions),
        *_limits(manifest),
        call("close everything", "close_range", 0, 0xFFFF_FFFF, 0),
    )


def fillings(manifest: Manifest) -> bytes:
    """What `ramet-pod fill` copies: page file, offset, address and length of each piece."""
    return b"".join(
        _FILLING.pack(segment.source, segment.offset, segment.start, segment.end - segment.start)
        for segment in manifest.segments
        if segment.kind in (PAGES, FILLED)
    )


def protect_calls(manifest: Manifest) -> tuple[InjectedCall, ...]:
    """The calls that give what was filled the protection that it had."""
    return tuple(
        call("protect memory", "mprotect", segment.start, segment.end - segment.start, segment.protection)
        for segment in manifest.segments
        if segment.kind in (PAGES, FILLED) and segment.protection != READ | WRITE
    )


def _clear(manifest: Manifest, here: Mapping[str, tuple[int, int]]) -> Iterator[InjectedCall]:
    """Unmap everything but the calls themselves, and move the kernel's areas to where the image expects them."""
    there = {name: (start, end) for name, start, end in manifest.kernels_areas}
    sizes = {name: end - start for name, (start, end) in here.items()}
    if sizes != {name: end - start for name, (start, end) in there.items()}:
        raise ImageRefused("the image was written on another kernel")
    # Aside first: they may lie where another one of them belongs.
    aside = ASIDE
    for name, (start, _) in sorted(here.items(), key=lambda area: area[1]):
        yield call(f"move {name} aside", "mremap", start, sizes[name], sizes[name], _MOVE_TO, aside)
        aside += sizes[name]
    lists_end = SCRATCH_START + _LISTS_BYTES_AT_MOST
    yield call("unmap what lies below the calls", "munmap", 0, SCRATCH_START)
    yield call("unmap what lies behind the calls", "munmap", lists_end, ASIDE - lists_end)
    yield call("unmap what lies above", "munmap", aside, TOP - aside)
    aside = ASIDE
    for name, _ in sorted(here.items(), key=lambda area: area[1]):
        yield call(f"move {name} home", "mremap", aside, sizes[name], sizes[name], _MOVE_TO, there[name][0])
        aside += sizes[name]


def _map(segment: Segment) -> Iterator[InjectedCall]:
    length = segment.end - segment.start
    # NOREPLACE: an image whose parts overlap is refused by the kernel as well.
    flags = PRIVATE | _ANONYMOUS | segment.flags & (NO_RESERVE | GROWS_DOWN) | _FIXED_NOREPLACE
    if segment.kind == FILLED:  # in memory that is there already
        if segment.protection != READ | WRITE:
            yield call("make memory writable", "mprotect", segment.start, length, READ | WRITE)
        return
    protection = READ | WRITE if segment.kind == PAGES else segment.protection
    yield call("map memory", "mmap", segment.start, length, protection, flags, -1, 0)
    yield from _advise(segment)  # before it is filled: huge pages are chosen when memory is first touched


def _advise(segment: Segment) -> Iterator[InjectedCall]:
    for advice in segment.advice:
        length = segment.end - segment.start
        # A kernel without huge pages refuses some of it; the memory is the same.
        yield call("advise", "madvise", segment.start, length, advice, must_work=False)


def _map_files(manifest: Manifest) -> Iterator[InjectedCall]:
    """Each file is opened once: its path leads through the boot tree, which shows what every pod shows.

    The process has no other descriptor, so each becomes 0.
    """
    by_file: dict[int, list[Segment]] = {}
    for segment in manifest.segments:
        if segment.kind == FILE:
            by_file.setdefault(segment.source, []).append(segment)
    for number, segments in by_file.items():
        path = os.fsencode(manifest.files[number])
        # NONBLOCK: whatever lies there now must not hold up the engine's tracer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        yield call(f"open {manifest.files[number]}", "openat", AT_FDCWD, path, flags, 0)
        for segment in segments:
            length = segment.end - segment.start
            how = segment.flags & (SHARED | PRIVATE | NO_RESERVE) | _FIXED_NOREPLACE
            yield call("map a file", "mmap", segment.start, length, segment.protection, how, 0, segment.offset)
            yield from _advise(segment)
        yield call("close", "close", 0)


def _handlers(actions: bytes) -> Iterator[InjectedCall]:
    for number in range(1, 65):
        action = actions[(number - 1) * 32 : number * 32]
        if number not in (_KILL, _STOP) and any(action):
            yield call("set a signal handler", "rt_sigaction", number, action, 0, 8)


def _limits(manifest: Manifest) -> Iterator[InjectedCall]:
    """Where the kernel believes code, heap, stack, arguments and environment to lie, and which program it is.

    Without it `sbrk` fails and /proc/self shows the empty process. It takes CONFIG_CHECKPOINT_RESTORE, and for the
    program CAP_SYS_ADMIN in the user namespace of the process, which it still holds.
    """
    executable = os.fsencode(manifest.template.python)
    yield call("open the interpreter", "openat", AT_FDCWD, executable, os.O_RDONLY | os.O_CLOEXEC, 0)
    # struct prctl_mm_map: the limits, no auxiliary vector (its pointer and size), the descriptor of the program.
    block = struct.pack("<11QQIi", *manifest.memory_limits, 0, 0, 0)
    yield call("set the limits of the memory", "prctl", _PR_SET_MM, _PR_SET_MM_MAP, block, len(block), 0)
