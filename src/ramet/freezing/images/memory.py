"""The memory of a frozen process, as the kernel lists it: its mappings, and the pages that belong to it alone."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import field

from ramet.protocol.lazy_dataclasses import dataclass
from ramet_guest.wire import SCRATCH_END, SCRATCH_START

PAGE = 4096
READ, WRITE, EXECUTE = 1, 2, 4
SHARED, PRIVATE, GROWS_DOWN, NO_RESERVE = 0x01, 0x02, 0x100, 0x4000  # MAP_...
WIPE_ON_FORK = 18  # MADV_WIPEONFORK

# Advice of madvise(2) that a mapping has, by the word for it in VmFlags.
_ADVICE = {b"hg": 14, b"nh": 15, b"dc": 10, b"wf": WIPE_ON_FORK, b"dd": 16}
ADVICE = frozenset(_ADVICE.values())
_HEAD = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) (....) ([0-9a-f]+) [0-9a-f]+:[0-9a-f]+ (\d+) *(.*)")
_KERNELS_OWN = ("[vvar", "[vdso", "[vsyscall")

_PAGEMAP_SCAN = 0xC060_6610  # _IOWR('f', 16, struct pm_scan_arg), Linux 6.7
_IS_FILE, _IS_PRESENT, _IS_SWAPPED, _IS_ZERO = 4, 8, 16, 32  # PAGE_IS_...
_SCANNED_AT_ONCE = 4096
# Before Linux 6.7 an entry of 8 bytes is read for each page, present or not.
_ENTRIES_AT_ONCE = 1 << 16
_ENTRY_BYTES_AT_MOST = 64 << 30  # of a mapping
_PRESENT, _SWAPPED, _FILE_OR_SHARED = 1 << 63, 1 << 62, 1 << 61


@dataclass(slots=True)
class Area:
    """One mapping."""

    start: int
    end: int
    protection: int
    flags: int
    offset: int
    inode: int
    name: str
    advice: tuple[int, ...] = ()
    held: bool = True  # some of it is in memory or in swap
    special: str = ""  # what it is that no image can have

    @property
    def is_shared(self) -> bool:
        return bool(self.flags & SHARED)

    @property
    def is_kernels(self) -> bool:
        return self.name.startswith(_KERNELS_OWN)


def read_areas(pid: int) -> list[Area]:
    """All mappings but the region in which calls are laid out."""
    with open(f"/proc/{pid}/smaps", "rb") as lines:
        return parse_areas(lines)


def parse_areas(lines: Iterable[bytes]) -> list[Area]:
    """The lines of /proc/PID/smaps."""
    areas: list[Area] = []
    for line in lines:
        if (match := _HEAD.match(line)) is not None:
            areas.append(_area(match))
            areas[-1].held = False
        elif line.startswith((b"Rss:", b"Swap:")):
            areas[-1].held |= line.split()[1] != b"0"
        elif line.startswith(b"ProtectionKey:") and line.split()[1] != b"0":
            areas[-1].special = "memory with a protection key"
        elif line.startswith(b"VmFlags:"):
            words = line.split()[1:]
            areas[-1].advice = tuple(_ADVICE[word] for word in words if word in _ADVICE)
            areas[-1].flags |= (GROWS_DOWN if b"gd" in words else 0) | (NO_RESERVE if b"nr" in words else 0)
            if b"ss" in words:
                areas[-1].special = "a shadow stack"
    return [area for area in areas if area.end <= SCRATCH_START or area.start >= SCRATCH_END]


def _area(match: re.Match[bytes]) -> Area:
    mode = match[3]
    protection = sum(bit for letter, bit in zip(mode[:3], (READ, WRITE, EXECUTE), strict=True) if letter != ord("-"))
    return Area(
        start=int(match[1], 16),
        end=int(match[2], 16),
        protection=protection,
        flags=SHARED if mode.endswith(b"s") else PRIVATE,
        offset=int(match[4], 16),
        inode=int(match[5]),
        name=os.fsdecode(match[6].rstrip(b"\n")),
    )


def kernels_areas(pid: int) -> dict[str, tuple[int, int]]:
    """Where the kernel has put its own code and data into a process: the vdso and what it reads."""
    found: dict[str, tuple[int, int]] = {}
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.split()
            if words[-1].startswith(("[vvar", "[vdso")):
                start, _, end = words[0].partition("-")
                found[words[-1]] = (int(start, 16), int(end, 16))
    return found


def read_vdso(pid: int, areas: Mapping[str, tuple[int, int]]) -> bytes:
    start, end = areas["[vdso]"]
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(start)
        return memory.read(end - start)


def mapped_inode(file: int) -> int:
    """The number that lists of mappings show for a file. On an overlay it may differ from the one that `stat` has."""
    with mmap.mmap(file, 1, mmap.MAP_PRIVATE) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        try:
            wanted = b"%x-" % ctypes.addressof(first)
        finally:
            del first  # a mapping that something points to cannot be closed
        with open("/proc/self/maps", "rb") as lines:
            found = next((match for line in lines if line.startswith(wanted) and (match := _HEAD.match(line))), None)
    return 0 if found is None else int(found[5])


def highest_mapping(pid: int) -> int:
    """Where the kernel looks first, and then downwards, for room for new mappings.

    It shows that nowhere, but the highest mapping below the stack ends there, of a process that has made any.
    """
    found = 0
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.rstrip().endswith("[stack]"):
                break
            found = int(line.split()[0].partition("-")[2], 16)
    return found


@dataclass(slots=True)
class PageMap:
    """/proc/PID/pagemap. Pages of a process are its own if they are neither a file's nor the kernel's page of zeros."""

    pid: int
    _file: int = field(init=False)
    _can_scan: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self._file = os.open(f"/proc/{self.pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._file)

    def own(self, area: Area) -> list[tuple[int, int]]:
        """Ranges of own pages, in ascending order. Before Linux 6.7 pages of zeros are among them."""
        if not area.held:
            return []
        if self._can_scan:
            try:
                return self._scan(area.start, area.end)
            except OSError:
                self._can_scan = False  # ENOTTY: a kernel without this request
        return self._read(area)

    def _scan(self, start: int, end: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        room = bytearray(24 * _SCANNED_AT_ONCE)
        vector = (ctypes.c_char * len(room)).from_buffer(room)
        while start < end:
            # size, flags, start, end, walked to, vector, its length, most pages, inverted, required, any of, returned
            argument = bytearray(
                struct.pack(
                    "<12Q", 96, 0, start, end, 0, ctypes.addressof(vector), _SCANNED_AT_ONCE, 0,
                    _IS_FILE | _IS_ZERO, _IS_FILE | _IS_ZERO, _IS_PRESENT | _IS_SWAPPED, _IS_PRESENT,
                )
            )  # fmt: skip
            for number in range(fcntl.ioctl(self._file, _PAGEMAP_SCAN, argument)):
                first, last, _ = struct.unpack_from("<3Q", room, number * 24)
                _append(found, first, last)
            start = struct.unpack_from("<Q", argument, 32)[0]
        return found

    def _read(self, area: Area) -> list[tuple[int, int]]:
        if area.end - area.start > _ENTRY_BYTES_AT_MOST:
            raise OSError(f"a mapping of {area.end - area.start} bytes takes Linux 6.7 to be looked through")
        found: list[tuple[int, int]] = []
        for start in range(area.start, area.end, _ENTRIES_AT_ONCE * PAGE):
            count = min(_ENTRIES_AT_ONCE, (area.end - start) // PAGE)
            entries = os.pread(self._file, count * 8, start // PAGE * 8)
            for number, (entry,) in enumerate(struct.iter_unpack("<Q", entries)):
                if entry & (_PRESENT | _SWAPPED) and not entry & _FILE_OR_SHARED:
                    _append(found, start + number * PAGE, start + (number + 1) * PAGE)
        return found


def _append(found: list[tuple[int, int]], start: int, end: int) -> None:
    # Linux 6.18 says that it has looked up to a multiple of 2 MiB, and has already told of pages behind: the next look
    # tells of them again.
    if found and start < found[-1][1]:
        start = found[-1][1]
        if start >= end:
            return
    if found and found[-1][1] == start:
        found[-1] = (found[-1][0], end)
    else:
        found.append((start, end))
