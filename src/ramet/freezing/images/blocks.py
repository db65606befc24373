"""Large blocks of the C library: of the pages of an image, those that a process may map instead of copying.

The first use of an image would otherwise take as long as copying all its memory takes. But memory that is mapped from a
file is not like memory:

- it cannot grow: a page behind the end of the file is SIGBUS, and `realloc` grows large blocks by ``mremap``;
- where it is given back (``MADV_DONTNEED``) the bytes of the file return instead of zeros, which allocators rely on.

A block that glibc has taken from the kernel for a single `malloc` has neither problem. Only glibc changes its mapping,
and it never gives back a part of it. To grow it, glibc asks for one ``mremap`` of the whole block. The kernel refuses
that for more than one mapping, and glibc copies the block. So the first page of each block is copied: the block is more
than one mapping then, also after it was shortened.

Such a block says what it is: it begins with a word of zeros and its size, in whole pages, with the bit that stands for
"mapped". Where a program has written the same by itself, it has to live with the above; it harms only its own sandbox.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ramet.freezing.images.manifest import MAPPED, MEMORY, PAGES, Segment
from ramet.freezing.images.memory import NO_RESERVE, PAGE, PRIVATE, READ, WRITE
from ramet.isolation.kernel import syscalls

_HEAD = struct.Struct("<2Q")  # struct malloc_chunk: what lies before a block in its mapping, size and flags
_IS_MAPPED, _FLAGS = 2, 7
_LARGE_BYTES = 4 << 20  # smaller blocks are copied: a fault for each page costs more than copying many at once
_PIECE_BYTES = 256 << 10  # of a block, from one page file: each piece is a mapping, which every fork has to copy
# File systems of this machine. A page on another machine may become unreadable when that is switched off.
_LOCAL = frozenset({
    0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0xF2F52010, 0x2FC12FC1, 0xCA451A4E,
})  # fmt: skip  # ext4, xfs, btrfs, tmpfs, overlay, f2fs, zfs, bcachefs


def map_large_blocks(segments: Sequence[Segment], pages: Sequence[int]) -> tuple[Segment, ...]:
    """The segments of an image, with `MAPPED` ones for what can be mapped. ``pages``: descriptors of its page files.

    Raises OSError.
    """
    local = [syscalls.file_system_type(file) in _LOCAL for file in pages]
    lengths = [os.fstat(file).st_size for file in pages]
    blocks = [block for block in _blocks(segments, pages) if block[1] - block[0] >= _LARGE_BYTES]
    planned: list[Segment] = []
    place = 0
    for segment in segments:
        while place < len(blocks) and blocks[place][1] <= segment.start:
            place += 1
        # A file that somebody has cut short is left to the program that copies, which says so.
        if segment.kind == PAGES and local[segment.source] and _reach(segment) <= lengths[segment.source]:
            planned += _split(segment, blocks, place)
        else:
            planned.append(segment)
    return tuple(planned)


def _reach(segment: Segment) -> int:
    """How much of its page file it needs."""
    return segment.offset + segment.end - segment.start


def _split(segment: Segment, blocks: Sequence[tuple[int, int]], place: int) -> Iterator[Segment]:
    """The segment, cut where blocks begin and end. ``place``: of the first block that may reach into it."""
    at = segment.start
    while place < len(blocks) and blocks[place][0] < segment.end:
        start = max(at, blocks[place][0] + PAGE)
        end = min(segment.end, blocks[place][1])
        if end - start >= _PIECE_BYTES:
            if at < start:
                yield _part(segment, at, start)
            yield replace(_part(segment, start, end), kind=MAPPED)
            at = end
        place += 1
    if at < segment.end:
        yield _part(segment, at, segment.end)


def _part(segment: Segment, start: int, end: int) -> Segment:
    return replace(segment, start=start, end=end, offset=segment.offset + start - segment.start)


def _blocks(segments: Sequence[Segment], pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Start and end of each block, in ascending order, without most of the small ones.

    A block begins where a mapping of its own begins, or where the one before it ends: the kernel joins the mappings of
    blocks that lie side by side.
    """
    starts = [segment.start for segment in segments]
    known = 0  # everything before this address has been looked at
    end_of_run = 0
    for number, segment in enumerate(segments):
        if segment.kind != PAGES or not _is_plain(segment) or segment.start < known:
            continue
        if segment.start >= end_of_run:
            end_of_run = _end_of_run(segments, number)
        known = segment.start
        while end_of_run - known >= _LARGE_BYTES:
            size = _size(segments[bisect_right(starts, known) - 1], known, pages)
            if size is None or known + size > end_of_run:
                break
            yield known, known + size
            known += size


def _is_plain(segment: Segment) -> bool:
    return (
        segment.kind in (PAGES, MEMORY)
        and segment.protection == READ | WRITE
        and segment.flags | NO_RESERVE == PRIVATE | NO_RESERVE
    )


def _end_of_run(segments: Sequence[Segment], number: int) -> int:
    """Where the plain memory ends that begins with this segment and has no gap."""
    end = segments[number].end
    for following in range(number + 1, len(segments)):
        if segments[following].start != end or not _is_plain(segments[following]):
            break
        end = segments[following].end
    return end


def _size(segment: Segment, address: int, pages: Sequence[int]) -> int | None:
    """Of the block that begins at this address. None: none does."""
    if segment.kind != PAGES or not segment.start <= address < segment.end:
        return None  # nothing was ever written there
    head = os.pread(pages[segment.source], _HEAD.size, segment.offset + address - segment.start)
    if len(head) != _HEAD.size:
        return None  # the file is shorter than it was; whoever copies it says so
    before, size = _HEAD.unpack(head)
    mapped = before == 0 and size & _FLAGS == _IS_MAPPED
    size &= ~_FLAGS
    return size if mapped and size and size % PAGE == 0 else None
