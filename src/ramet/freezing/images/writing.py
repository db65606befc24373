"""From a frozen shadow to the segments of an image. Works from outside, while sandboxes run."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ramet.freezing.images.manifest import FILE, FILLED, MEMORY, PAGES, ImageRefused, Segment
from ramet.freezing.images.memory import EXECUTE, GROWS_DOWN, PRIVATE, WIPE_ON_FORK, Area, PageMap, read_areas
from ramet.isolation.launch import HELPER

_RUN = struct.Struct("<4Q")
_RANGE = struct.Struct("<2Q")
_OWN, _ZERO = 0, 1  # kinds of runs, as in pages.c


@dataclass(slots=True)
class Written:
    """The memory of a process, as an image has it."""

    segments: list[Segment] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    kernels_areas: list[tuple[str, int, int]] = field(default_factory=list)


class PageWriter:
    """One run of ``ramet-pod pages``: a process of its own, at the lowest priority."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def write(self, pid: int, ranges: Iterable[tuple[int, int]], pages: int, table: int) -> list[tuple[int, ...]]:
        """The runs that became of the ranges: kind, start, end, offset. Raises OSError, also when it was stopped."""
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            numbers = (memory, pages, table)
            command = [str(HELPER), "pages", *map(str, numbers), "-1"]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=numbers, env={}
            )  # fmt: skip
        finally:
            os.close(memory)
        if self._stopped:
            self._process.kill()
        asked = self._key + b"".join(_RANGE.pack(*each) for each in ranges)
        found, said = self._process.communicate(asked)
        if self._process.returncode:
            raise OSError(said.decode("utf-8", "replace").strip() or "the program that writes pages was ended")
        return list(_RUN.iter_unpack(found))

    def stop(self) -> None:
        """From any thread."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()


def write_memory(pid: int, writer: PageWriter, pages: int, table: int, is_systems: Callable[[Area], bool]) -> Written:
    """Write the pages of a frozen process.

    ``is_systems``: whether a mapped file is one that every pod shows. Pages of other files are written like own ones.
    Raises OSError, or ImageRefused where its memory cannot be made again.
    """
    made = Written()
    areas: list[Area] = []
    for area in read_areas(pid):
        if area.is_kernels:
            if area.name != "[vsyscall]":
                made.kernels_areas.append((area.name, area.start, area.end))
        else:
            areas.append(area)
    ranges: list[list[tuple[int, int]]] = []
    page_map = PageMap(pid)
    try:
        for area in areas:
            ranges.append(_ranges(area, page_map, is_systems))
    finally:
        page_map.close()
    runs = writer.write(pid, (each for of_area in ranges for each in of_area), pages, table)
    _lay_out(made, areas, runs, is_systems)
    return made


def _ranges(area: Area, page_map: PageMap, is_systems: Callable[[Area], bool]) -> list[tuple[int, int]]:
    """The parts of a mapping whose bytes only this process has."""
    if area.is_shared:
        if not area.inode or not is_systems(area):
            raise ImageRefused(f"the process shares memory with others: {area.name or 'nameless'}")
        return []
    if WIPE_ON_FORK in area.advice:
        return []
    if area.inode and not is_systems(area):
        return [(area.start, area.end)]
    return page_map.own(area)


def _lay_out(
    made: Written, areas: Sequence[Area], runs: Sequence[tuple[int, ...]], is_systems: Callable[[Area], bool]
) -> None:
    numbers: dict[str, int] = {}
    next_run = 0
    for area in areas:
        number = None
        if area.inode and is_systems(area):
            number = numbers.setdefault(area.name, len(numbers))
        mine = []
        while next_run < len(runs) and runs[next_run][1] < area.end:
            mine.append(runs[next_run])
            next_run += 1
        made.segments += _stack(area, mine) if area.flags & GROWS_DOWN else _pieces(area, number, mine)
    made.files = list(numbers)


def _stack(area: Area, runs: Sequence[tuple[int, ...]]) -> list[Segment]:
    whole = Segment(MEMORY, area.start, area.end, area.protection, area.flags, area.advice, 0, 0)
    return [whole, *(_filled(area, start, end, offset) for kind, start, end, offset in runs if kind == _OWN)]


def _pieces(area: Area, number: int | None, runs: Sequence[tuple[int, ...]]) -> list[Segment]:
    """The area cut where its pages come from another place."""
    pieces: list[Segment] = []

    def rest(start: int, end: int) -> None:
        if start >= end:
            return
        if number is None:
            pieces.append(Segment(MEMORY, start, end, area.protection, area.flags, area.advice, 0, 0))
        else:
            offset = area.offset + start - area.start
            pieces.append(Segment(FILE, start, end, area.protection, area.flags, area.advice, number, offset))

    at = area.start
    for kind, start, end, offset in runs:
        if kind == _ZERO and number is None:
            continue  # as if it had never been touched
        rest(at, start)
        if kind == _ZERO:
            pieces.append(Segment(MEMORY, start, end, area.protection, PRIVATE, area.advice, 0, 0))
        elif area.protection & EXECUTE:
            # The store may lie on a file system that nothing may be executed from: no mapping of a page file.
            pieces.append(Segment(MEMORY, start, end, area.protection, PRIVATE, area.advice, 0, 0))
            pieces.append(_filled(area, start, end, offset))
        else:
            pieces.append(Segment(PAGES, start, end, area.protection, area.flags, area.advice, 0, offset))
        at = end
    rest(at, area.end)
    return pieces


def _filled(area: Area, start: int, end: int, offset: int) -> Segment:
    return Segment(FILLED, start, end, area.protection, PRIVATE, (), 0, offset)
