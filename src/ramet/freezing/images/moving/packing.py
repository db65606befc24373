"""Packs an image into one file. Its pages become one part, without those that only other images use."""

from __future__ import annotations

import bisect
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ramet.freezing.images.manifest import FILLED, PAGES, ImageRefused, Manifest
from ramet.freezing.images.moving.blocks import BLOCK_BYTES, DATA, INDEX, PART, BlockWriter

FORMAT = 1
PARTS = ("manifest.json", "sources", "state", "threads", "vdso", "files", "pages")
Progress = Callable[[int, int], None]  # bytes done, bytes in all

_ZEROS = bytes(BLOCK_BYTES)


class _PackedRun(NamedTuple):
    """Bytes of a page file that are bytes of the part "pages"."""

    begin: int  # in the part
    end: int
    page_file: int
    offset: int


def pack(
    manifest: Manifest,
    parts: Mapping[str, bytes | int],
    pages: tuple[int, ...],
    write: Callable[[bytes], object],
    progress: Progress = lambda _done, _all: None,
) -> None:
    """Write one file. ``parts``: the other files of the image, as bytes or as descriptors. Blocks; raises OSError."""
    segments, runs = [], []
    at = 0
    for segment in manifest.segments:
        if segment.kind in (PAGES, FILLED):
            length = segment.end - segment.start
            runs.append(_PackedRun(at, at + length, pages[segment.source], segment.offset))
            segments.append(dataclasses.replace(segment, source=0, offset=at))
            at += length
        else:
            segments.append(segment)
    alone = dataclasses.replace(manifest, segments=tuple(segments), page_files=(("pages", at),), digests=())
    held: dict[str, bytes | int] = {**parts, "manifest.json": alone.encode()}
    sizes = [(name, at if name == "pages" else _size(held[name])) for name in PARTS]
    total = sum(size for _, size in sizes)
    writer = BlockWriter(write)
    index = {"format": FORMAT, "parts": sizes}
    writer.block(INDEX, 0, json.dumps(index).encode("ascii"))
    done = 0
    for number, (name, size) in enumerate(sizes):
        writer.block(PART, number, b"")
        for offset in range(0, size, BLOCK_BYTES):
            length = min(BLOCK_BYTES, size - offset)
            data = _of_pages(runs, offset, length) if name == "pages" else _of_part(held[name], offset, length)
            if data != _ZEROS[:length]:
                writer.block(DATA, offset, data)
            done += length
            progress(done, total)
    writer.end()


def _size(part: bytes | int) -> int:
    return len(part) if isinstance(part, bytes) else os.fstat(part).st_size


def _of_part(part: bytes | int, offset: int, length: int) -> bytes:
    return part[offset : offset + length] if isinstance(part, bytes) else _exactly(part, offset, length)


def _of_pages(runs: list[_PackedRun], offset: int, length: int) -> bytes:
    return b"".join(_exactly(*piece) for piece in _pieces(runs, offset, length))


def _pieces(runs: list[_PackedRun], offset: int, length: int) -> Iterator[tuple[int, int, int]]:
    place = bisect.bisect_right(runs, offset, key=lambda run: run.begin) - 1
    end = offset + length
    while offset < end:
        run = runs[place]
        until = min(end, run.end)
        yield run.page_file, run.offset + offset - run.begin, until - offset
        offset = until
        place += 1


def _exactly(descriptor: int, offset: int, length: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    if len(data) != length:
        raise ImageRefused("a file of the image became shorter")
    return data
