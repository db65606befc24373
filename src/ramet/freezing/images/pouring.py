"""From an image to the calls that an empty process makes. What is called is decided here; the image gives numbers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping

from ramet.freezing.calls import AT_FDCWD, InjectedCall, call
from ramet.freezing.images.manifest import ASIDE, FILE, FILLED, MAPPED, PAGES, TOP, Manifest, Segment
from ramet.freezing.images.memory import EXECUTE, GROWS_DOWN, NO_RESERVE, PAGE, PRIVATE, READ, SHARED, WRITE
from ramet.freezing.images.vdso import Homes
from ramet_guest.wire import SCRATCH_START

_MOVE_TO = 3  # MREMAP_MAYMOVE | MREMAP_FIXED
_ANONYMOUS, _FIXED_NOREPLACE = 0x20, 0x100000  # MAP_...
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_LISTS_BYTES_AT_MOST = 1 << 30
_FILLING = struct.Struct("<4Q")
_STACK_BYTES = 64 << 20  # that a stack may grow to, and the gap that the kernel keeps below it
_KILL, _STOP = 9, 19  # have no handlers
FIRST_PAGE_FILE = 1  # the descriptor at which an empty process has page file 0; 0 is for one file after another


def map_calls(manifest: Manifest, here: Mapping[str, tuple[int, int]], homes: Homes) -> tuple[InjectedCall, ...]:
    """The calls that replace the memory of an empty process by that of the image, still without its pages.

    ``here``: where the kernel has put its own areas into the process. What is to be filled is writable until
    `last_calls`.
    """
    return (
        *_clear(here, homes),
        *_make_room(manifest, homes),
        *(each for segment in manifest.segments if segment.kind != FILE for each in _map(segment)),
        *_map_files(manifest),
        *_handlers(manifest.actions),
    )


def fillings(manifest: Manifest) -> bytes:
    """The work of `ramet-pod fill`: page file, offset, address and length of each piece."""
    return b"".join(
        _FILLING.pack(segment.source, segment.offset, segment.start, segment.end - segment.start)
        for segment in manifest.segments
        if segment.kind in (PAGES, FILLED)
    )


def texts(manifest: Manifest, homes: Homes) -> tuple[tuple[int, bytes], ...]:
    """Writes besides pages, before `last_calls`: address and bytes."""
    found = [(ASIDE, manifest.auxiliary)]
    if homes.carried:
        found.append((homes.carried_at, homes.carried))
    return tuple(each for each in found if each[1])


def last_calls(manifest: Manifest, homes: Homes) -> tuple[InjectedCall, ...]:
    """The calls that give what was filled the protection that it had, and the process its limits."""
    return (
        *(
            call("protect memory", "mprotect", segment.start, segment.end - segment.start, segment.protection)
            for segment in manifest.segments
            if segment.kind in (PAGES, FILLED) and segment.protection != READ | WRITE
        ),
        *_protect_carried(homes),
        *_limits(manifest),
        call("unmap what was written for the calls", "munmap", ASIDE, PAGE),
        call("close everything", "close_range", 0, 0xFFFF_FFFF, 0),
    )


def stack_can_grow(manifest: Manifest, base: int) -> bool:
    """Whether mappings that a process makes from now on stay clear of the image's stack.

    ``base``: from where the kernel looks for room for them, downwards. It is the empty process's own, at random, and in
    one or two of a hundred it lies so high that mappings come to lie right below the stack.
    """
    stack = max((segment.end for segment in manifest.segments if segment.flags & GROWS_DOWN), default=TOP)
    return base <= stack - _STACK_BYTES


def _make_room(manifest: Manifest, homes: Homes) -> Iterator[InjectedCall]:
    """For `texts`."""
    flags = PRIVATE | _ANONYMOUS | _FIXED_NOREPLACE
    if homes.carried:
        length = len(homes.carried)
        yield call("make room for the vdso", "mmap", homes.carried_at, length, READ | WRITE, flags, -1, 0)
    yield call("make room for the calls", "mmap", ASIDE, PAGE, READ | WRITE, flags, -1, 0)


def _protect_carried(homes: Homes) -> Iterator[InjectedCall]:
    if homes.carried:
        yield call("protect the vdso", "mprotect", homes.carried_at, len(homes.carried), READ | EXECUTE)


def _clear(here: Mapping[str, tuple[int, int]], homes: Homes) -> Iterator[InjectedCall]:
    """Unmap everything but the calls themselves, and move the kernel's areas to their homes."""
    sizes = {name: end - start for name, (start, end) in here.items()}
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
        yield call(f"move {name} home", "mremap", aside, sizes[name], sizes[name], _MOVE_TO, homes.areas[name])
        aside += sizes[name]


def _map(segment: Segment) -> Iterator[InjectedCall]:
    length = segment.end - segment.start
    if segment.kind == MAPPED:
        file, how = FIRST_PAGE_FILE + segment.source, PRIVATE | segment.flags & NO_RESERVE | _FIXED_NOREPLACE
        yield call("map a block", "mmap", segment.start, length, segment.protection, how, file, segment.offset)
        yield from _advise(segment)
        return
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
        # NONBLOCK: a FIFO that lies there now must not hold up the engine's tracer.
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
    # struct prctl_mm_map: the limits, the auxiliary vector (its pointer and size), the descriptor of the program.
    vector = (ASIDE, len(manifest.auxiliary)) if manifest.auxiliary else (0, 0)
    block = struct.pack("<11QQIi", *manifest.memory_limits, *vector, 0)
    yield call("set the limits of the memory", "prctl", _PR_SET_MM, _PR_SET_MM_MAP, block, len(block), 0)
