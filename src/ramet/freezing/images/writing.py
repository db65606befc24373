"""From a frozen shadow to the segments of an image. Works from outside, while sandboxes run."""

from __future__ import annotations

import os
import struct
import subprocess
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import NamedTuple

from ramet.freezing.images.manifest import FILE, FILLED, MEMORY, PAGES, ImageRefused, Segment
from ramet.freezing.images.memory import GROWS_DOWN, PRIVATE, WIPE_ON_FORK, Area, PageMap, read_areas
from ramet.isolation.launch import HELPER
from ramet.protocol.lazy_dataclasses import dataclass

_RUN = struct.Struct("<4Q")
_RANGE = struct.Struct("<2Q")
_WRITE_SECONDS = 900.0  # others wait for their turn
_OWN, _ZERO, _BASE = 0, 1, 2  # kinds of runs, as in pages.c


class _Run(NamedTuple):
    """Pages that come from one place: zeros, or a page file."""

    zero: bool
    start: int
    end: int
    source: int
    offset: int


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
        # Set by the event loop while a thread is about to start the process: that looks at it once more afterwards.
        self._stopped = False

    def write(
        self, pid: int, ranges: Iterable[tuple[int, int]], pages: int, table: int, base_table: int | None
    ) -> list[tuple[int, ...]]:
        """The runs that became of the ranges: kind, start, end, offset. Raises OSError, also when it was stopped."""
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            numbers = [memory, pages, table] + ([] if base_table is None else [base_table])
            command = [str(HELPER), "pages", *map(str, numbers), *(["-1"] if base_table is None else [])]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=numbers, env={}
            )  # fmt: skip
        finally:
            os.close(memory)
        if self._stopped:
            self._process.kill()
        asked = self._key + b"".join(_RANGE.pack(*each) for each in ranges)
        try:
            found, said = self._process.communicate(asked, timeout=_WRITE_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.communicate()
            raise OSError(f"writing took more than {_WRITE_SECONDS:.0f} seconds") from error
        if self._process.returncode:
            raise OSError(said.decode("utf-8", "replace").strip() or "the program that writes pages was ended")
        return list(_RUN.iter_unpack(found))

    def stop(self) -> None:
        """From any thread."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()


class BasePages:
    """The pages of an earlier image, by address: those that are still the same need not be written again."""

    def __init__(self, segments: Sequence[Segment], table: int) -> None:
        self.table = table
        self._segments = sorted(
            (each for each in segments if each.kind in (PAGES, FILLED)), key=lambda each: each.start
        )
        self._starts = [each.start for each in self._segments]

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """(start, end, page file of the base, offset there) of a range whose pages all have a hash in the table."""
        place = max(0, bisect_right(self._starts, start) - 1)
        while start < end:
            segment = self._segments[place] if place < len(self._segments) else None
            if segment is None or not segment.start <= start < segment.end:
                raise ImageRefused("the hashes of the base do not belong to its pages")
            until = min(end, segment.end)
            yield start, until, segment.source, segment.offset + start - segment.start
            start = until
            place += 1


def write_memory(
    pid: int,
    writer: PageWriter,
    pages: int,
    table: int,
    is_systems: Callable[[Area], bool],
    make_room: Callable[[int], None],
    base: BasePages | None = None,
) -> Written:
    """Write the pages of a frozen process. Page file 0 is its own; N is page file N - 1 of the base.

    ``make_room`` is called before, with the bytes that will be read; it raises where that is too much.

    ``is_systems``: whether a mapped file is one that every pod shows. Pages of other files are written like own ones.
    Raises OSError, or ImageRefused where its memory cannot be made again.
    """
    made = Written()
    areas: list[Area] = []
    for area in read_areas(pid):
        if area.special:
            raise ImageRefused(f"the process has {area.special}, which cannot be made again from an image")
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
    make_room(sum(end - start for of_area in ranges for start, end in of_area))
    found = writer.write(
        pid, (each for of_area in ranges for each in of_area), pages, table, None if base is None else base.table
    )
    _lay_out(made, areas, list(_resolved(found, base)), is_systems)
    return made


def _resolved(runs: Iterable[tuple[int, ...]], base: BasePages | None) -> Iterator[_Run]:
    for kind, start, end, offset in runs:
        if kind != _BASE:
            yield _Run(kind == _ZERO, start, end, 0, offset)
            continue
        assert base is not None
        for first, last, source, at in base.pieces(start, end):
            yield _Run(False, first, last, source + 1, at)


def _ranges(area: Area, page_map: PageMap, is_systems: Callable[[Area], bool]) -> list[tuple[int, int]]:
    """The parts of a mapping whose bytes only this process has."""
    if area.is_shared:
        if not area.inode or not is_systems(area):
            raise ImageRefused(f"the process shares memory with others: {area.name or 'nameless'}")
        return []
    if WIPE_ON_FORK in area.advice:
        return []
    # A private mapping of /dev/zero is plain memory, and may be larger than any file.
    if area.inode and not is_systems(area) and area.name != "/dev/zero":
        return [(area.start, area.end)]
    return page_map.own(area)


def _lay_out(made: Written, areas: Sequence[Area], runs: Sequence[_Run], is_systems: Callable[[Area], bool]) -> None:
    numbers: dict[str, int] = {}
    next_run = 0
    for area in areas:
        number = None
        if area.inode and is_systems(area):
            number = numbers.setdefault(area.name, len(numbers))
        mine = []
        while next_run < len(runs) and runs[next_run].start < area.end:
            mine.append(runs[next_run])
            next_run += 1
        made.segments += _stack(area, mine) if area.flags & GROWS_DOWN else _pieces(area, number, mine)
    made.files = list(numbers)


def _stack(area: Area, runs: Sequence[_Run]) -> list[Segment]:
    whole = Segment(MEMORY, area.start, area.end, area.protection, area.flags, area.advice, 0, 0)
    return [whole, *(_filled(area, run) for run in runs if not run.zero)]


def _pieces(area: Area, number: int | None, runs: Sequence[_Run]) -> list[Segment]:
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
    for run in runs:
        if run.zero and number is None:
            continue  # as if it had never been touched
        rest(at, run.start)
        place = (run.start, run.end, area.protection)
        if run.zero:
            pieces.append(Segment(MEMORY, *place, PRIVATE, area.advice, 0, 0))
        else:
            pieces.append(Segment(PAGES, *place, area.flags, area.advice, run.source, run.offset))
        at = run.end
    rest(at, area.end)
    return pieces


def _filled(area: Area, run: _Run) -> Segment:
    return Segment(FILLED, run.start, run.end, area.protection, PRIVATE, (), run.source, run.offset)
