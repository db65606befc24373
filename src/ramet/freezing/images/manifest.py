"""The manifest of an image: what it takes, besides pages, to make the process again. Reading trusts nothing of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from ramet.errors import ProtocolError, RametError
from ramet.freezing.images.memory import ADVICE, EXECUTE, GROWS_DOWN, NO_RESERVE, PAGE, PRIVATE, READ, SHARED, WRITE
from ramet.protocol import fields
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import TemplateSpec
from ramet_guest.wire import SCRATCH_END, SCRATCH_START

FORMAT: Final = 2
MANIFEST_BYTES_AT_MOST = 32 << 20
SEGMENTS_AT_MOST = 60_000
FILES_AT_MOST = 4096
PAGE_FILES_AT_MOST = 8
TOP = 0x7FFF_FFFF_F000  # of a process with 47 bits of address
_LOWEST = 65536  # vm.mmap_min_addr of most kernels
# Beside the scratch region, where the kernel's own areas wait while everything else is unmapped.
ASIDE, ASIDE_END = SCRATCH_END + 0x1000_0000, SCRATCH_END + 0x2000_0000
# In the order of struct prctl_mm_map.
MEMORY_LIMITS = (
    "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
    "arg_start", "arg_end", "env_start", "env_end",
)  # fmt: skip
_LATEST = 1 << 33  # seconds, some 270 years: clocks count nanoseconds in 63 bits
_KERNELS_AREA = re.compile(r"\[(vvar|vvar_[a-z0-9_]{1,24}|vdso)\]")  # Linux 6.13 has split the first
_KERNELS_AREAS_AT_MOST = 8
_SHIFT_AT_MOST = 1 << 32  # seconds
_AUXILIARY_BYTES_AT_MOST = 1024
_ACTION_BYTES = 64 * 32

MEMORY, FILE, PAGES, FILLED = "memory", "file", "pages", "filled"  # kinds of segments
MAPPED = "mapped"  # ``pages`` that a pour maps instead of copying; no manifest on disk has this kind


class ImageRefused(RametError):
    """An image that no process can be made of, here or at all."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of memory.

    ``memory``: zeros. ``file``: file ``source`` of the system, from ``offset`` on. ``pages``: page file ``source``.
    ``filled``: pages inside the memory before it: a stack that grows must be one mapping.
    """

    kind: str
    start: int
    end: int
    protection: int
    flags: int
    advice: tuple[int, ...]
    source: int
    offset: int

    def row(self) -> list[object]:
        return [
            self.kind,
            self.start,
            self.end,
            self.protection,
            self.flags,
            list(self.advice),
            self.source,
            self.offset,
        ]


@dataclass(frozen=True, slots=True)
class Manifest:
    """All values are plain data. `check` has looked at those of a manifest that was read."""

    id: str
    template: TemplateSpec
    created: float  # seconds since 1970
    boot: str  # of the machine
    monotonic: float  # of the process, when it was frozen
    boottime: float
    clock_shift: int  # seconds by which its clock is ahead of the machine's
    boottime_shift: int
    processor: str  # `Processor.text`
    page_files: tuple[tuple[str, int], ...]  # name in the folder of the image, bytes; its own first
    segments: tuple[Segment, ...]
    files: tuple[str, ...]  # mapped ones
    kernels_areas: tuple[tuple[str, int, int], ...]
    memory_limits: tuple[int, ...]
    auxiliary: bytes  # the vector of values that the kernel has given to the program
    actions: bytes
    open_files: tuple[tuple[int, int, int, bytes], ...]  # number, flags, offset, path
    digests: tuple[tuple[str, str], ...]  # of the other files of the image: name, SHA-256
    imported: bool = False  # another store wrote it: all of it is treated as hostile

    def encode(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "id": self.id,
                "template": self.template.header(),
                "created": self.created,
                "boot": self.boot,
                "monotonic": self.monotonic,
                "boottime": self.boottime,
                "clock_shift": self.clock_shift,
                "boottime_shift": self.boottime_shift,
                "processor": self.processor,
                "page_files": self.page_files,
                "segments": [segment.row() for segment in self.segments],
                "files": self.files,
                "kernels_areas": self.kernels_areas,
                "memory_limits": self.memory_limits,
                "auxiliary": self.auxiliary.hex(),
                "actions": self.actions.hex(),
                "open_files": [[number, flags, offset, path.hex()] for number, flags, offset, path in self.open_files],
                "digests": dict(self.digests),
                "imported": self.imported,
            },
            separators=(",", ":"),
        ).encode("ascii")

    @classmethod
    def read(cls, data: bytes) -> Manifest:
        """Raises ImageRefused for anything that `encode` would not have written."""
        try:
            header = json.loads(data)
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise ImageRefused("the image was written in another format")
            found = cls._read(header)
        except (ProtocolError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ImageRefused(f"the manifest of the image cannot be read: {error}") from error
        found.check()
        return found

    @classmethod
    def _read(cls, header: Mapping[str, object]) -> Manifest:
        return cls(
            id=fields.text(header, "id"),
            template=TemplateSpec.read(fields.mapping(header, "template")),
            created=_number(header["created"]),
            boot=fields.text(header, "boot"),
            monotonic=_number(header["monotonic"]),
            boottime=_number(header["boottime"]),
            clock_shift=_whole(header["clock_shift"]),
            boottime_shift=_whole(header["boottime_shift"]),
            processor=fields.text(header, "processor"),
            page_files=tuple((_text(name), _whole(size)) for name, size in _rows(header["page_files"], 2)),
            segments=tuple(map(_segment, _rows(header["segments"], 8))),
            files=fields.texts(header, "files"),
            kernels_areas=tuple(
                (_text(name), _whole(start), _whole(end)) for name, start, end in _rows(header["kernels_areas"], 3)
            ),
            memory_limits=tuple(map(_whole, _list(header["memory_limits"]))),
            auxiliary=bytes.fromhex(fields.text(header, "auxiliary")),
            actions=bytes.fromhex(fields.text(header, "actions")),
            open_files=tuple(
                (_whole(number), _whole(flags), _whole(offset), bytes.fromhex(_text(path)))
                for number, flags, offset, path in _rows(header["open_files"], 4)
            ),
            digests=tuple(fields.text_mapping(header, "digests").items()),
            imported="imported" in header and fields.flag(header, "imported"),
        )

    def check(self) -> None:
        """Every number that becomes an argument of a call, before it is used. Raises ImageRefused."""
        for what, count, most in (
            ("mappings", len(self.segments), SEGMENTS_AT_MOST),
            ("files", len(self.files), FILES_AT_MOST),
            ("page files", len(self.page_files), PAGE_FILES_AT_MOST),
        ):
            if count > most:
                raise ImageRefused(f"the image has {count} {what}, allowed are {most}")
        before = Segment(FILE, 0, 0, 0, 0, (), 0, 0)
        for segment in self.segments:
            self._check_segment(segment)
            if segment.kind == FILLED:
                if before.kind != MEMORY or not before.start <= segment.start < segment.end <= before.end:
                    raise ImageRefused("the image fills memory that it does not have")
                continue
            if segment.start < before.end:
                raise ImageRefused("two mappings of the image overlap, or are out of order")
            if any(start < segment.end and segment.start < end for _, start, end in self.kernels_areas):
                raise ImageRefused("a mapping of the image lies over one of the kernel's own areas")
            before = segment
        if not abs(self.monotonic) <= _LATEST or not abs(self.boottime) <= _LATEST:
            raise ImageRefused("the clock of the image is of another age")
        names = [name for name, _, _ in self.kernels_areas]
        if (
            len(set(names)) != len(names)
            or len(names) > _KERNELS_AREAS_AT_MOST
            or "[vdso]" not in names
            or not all(map(_KERNELS_AREA.fullmatch, names))
        ):
            raise ImageRefused("the image does not say where the kernel's own areas lie")
        for name, start, end in self.kernels_areas:
            if not is_place(start, end) or end - start > 1 << 20:
                raise ImageRefused(f"{name} of the image lies outside the memory of a process")
        if len(self.memory_limits) != len(MEMORY_LIMITS) or not all(0 <= at <= TOP for at in self.memory_limits):
            raise ImageRefused("the image does not say where code, heap and stack lie")
        if not all(math.isfinite(at) for at in (self.created, self.monotonic, self.boottime)) or not all(
            abs(shift) <= _SHIFT_AT_MOST for shift in (self.clock_shift, self.boottime_shift)
        ):
            raise ImageRefused("the image does not say what time it was")
        if len(self.auxiliary) > _AUXILIARY_BYTES_AT_MOST or len(self.auxiliary) % 16:
            raise ImageRefused("the image has no vector of auxiliary values")
        if len(self.actions) != _ACTION_BYTES:
            raise ImageRefused("the image does not say which signal handlers it has")

    def _check_segment(self, segment: Segment) -> None:
        length = segment.end - segment.start
        if not is_place(segment.start, segment.end) or segment.offset < 0 or segment.offset % PAGE:
            raise ImageRefused("a mapping of the image lies outside the memory of a process")
        if (
            segment.protection & ~(READ | WRITE | EXECUTE)
            or segment.flags & ~(SHARED | PRIVATE | GROWS_DOWN | NO_RESERVE)
            or not ADVICE.issuperset(segment.advice)
        ):
            raise ImageRefused("a mapping of the image has flags that no mapping has")
        if segment.kind == FILE:
            if not 0 <= segment.source < len(self.files) or segment.flags & SHARED and segment.protection & WRITE:
                raise ImageRefused("a mapping of the image is of a file that it does not have")
        elif segment.kind in (PAGES, FILLED):
            if not 0 <= segment.source < len(self.page_files):
                raise ImageRefused("a mapping of the image is of a page file that it does not have")
            if segment.offset + length > self.page_files[segment.source][1]:
                raise ImageRefused("a mapping of the image reaches beyond the end of its page file")
        elif segment.kind != MEMORY:
            raise ImageRefused(f"a mapping of the image is of an unknown kind, {segment.kind!r:.40}")
        if segment.flags & SHARED and segment.kind != FILE:
            raise ImageRefused("a mapping of the image is shared, and not a file's")


def is_place(start: int, end: int) -> bool:
    aligned = start % PAGE == 0 and end % PAGE == 0
    return aligned and _LOWEST <= start < end <= TOP and (end <= SCRATCH_START or start >= ASIDE_END)


def _segment(row: Sequence[object]) -> Segment:
    kind, start, end, protection, flags, advice, source, offset = row
    return Segment(
        _text(kind), _whole(start), _whole(end), _whole(protection), _whole(flags),
        tuple(map(_whole, _list(advice))), _whole(source), _whole(offset),
    )  # fmt: skip


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {value!r:.40}")
    return value


def _rows(value: object, width: int) -> list[list[object]]:
    rows = [_list(row) for row in _list(value)]
    if any(len(row) != width for row in rows):
        raise ValueError(f"expected rows of {width}")
    return rows


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r:.40}")
    return value


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, got {value!r:.40}")
    return value


def _number(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"expected a number, got {value!r:.40}")
    return float(value)  # type: ignore[arg-type]
