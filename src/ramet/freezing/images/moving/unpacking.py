"""Unpacks an image from one file, which may be anything: everything is bounded before it is written.

What comes out is an image of this store that is marked as imported: pouring it checks everything again, and its sandbox
makes all that the image asks for without capabilities. Whose it is, its limits, its interpreter and its name are what
the importer says.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from ramet.errors import ProtocolError
from ramet.freezing.images.manifest import FILLED, PAGES, ImageRefused, Manifest
from ramet.freezing.images.moving import mapped_files
from ramet.freezing.images.moving.blocks import DATA, INDEX, PART, BlockReader, Readable
from ramet.freezing.images.moving.packing import FORMAT, PARTS, Progress
from ramet.freezing.images.moving.state import foreign_state
from ramet.protocol import fields
from ramet.protocol.import_terms import ImportTerms

_MANIFEST_BYTES = 8 << 20  # of JSON, which is parsed in one go
_STATE_BYTES = 4 << 20
_SOURCES_BYTES = 1 << 20
_THREADS_BYTES = 16 << 20
_VDSO_BYTES = 1 << 20
_SECONDS = 3600.0
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(
    source: Readable,
    folder: int,
    terms: ImportTerms,
    progress: Progress = lambda _done, _all: None,
) -> Manifest:
    """Write the parts of an image into an empty folder. Returns its manifest, for the store to commit.

    Raises ImageRefused with what is wrong with the file, or OSError; the caller then removes the folder. Blocks.
    """
    return _Unpacking(source, folder, terms, progress).run()


class _Unpacking:
    def __init__(self, source: Readable, folder: int, terms: ImportTerms, progress: Progress) -> None:
        self._folder = folder
        self._terms = terms
        self._progress = progress
        self._deadline = time.monotonic() + _SECONDS
        self._bounds = {
            "manifest.json": _MANIFEST_BYTES,
            "sources": _SOURCES_BYTES,
            "state": _STATE_BYTES,
            "threads": _THREADS_BYTES,
            "vdso": _VDSO_BYTES,
            "files": terms.file_bytes_at_most,
            "pages": terms.page_bytes_at_most,
        }
        # Stored blocks are never larger than what they stand for; their headers add a thousandth.
        most = sum(self._bounds.values())
        self._reader = BlockReader(source, most + most // 512 + (1 << 20))
        self._done = 0

    def run(self) -> Manifest:
        sizes = self._index()
        block = self._reader.next()
        if block is None or block.kind != PART or block.offset != 0:
            raise ImageRefused("the parts of the image are out of order")
        manifest = self._manifest(self._to_memory("manifest.json", sizes), sizes["pages"])
        sources = self._to_memory("sources", sizes)
        mapped_files.read_digests(sources)
        # Before gigabytes are read for an image that is refused.
        state = foreign_state(self._to_memory("state", sizes), manifest, self._terms)
        parts = {"state": state, "sources": sources}
        for name in ("threads", "vdso"):
            parts[name] = self._to_memory(name, sizes)
        self._to_file("files", sizes)
        self._to_file("pages", sizes)
        digests = tuple((name, self._write(name, data)) for name, data in parts.items())
        return dataclasses.replace(manifest, digests=digests)

    def _index(self) -> dict[str, int]:
        block = self._reader.next()
        if block is None or block.kind != INDEX:
            raise ImageRefused("the file does not begin with a list of its parts")
        try:
            index: Mapping[str, object] = json.loads(block.data)
            if fields.whole(index, "format") != FORMAT:
                raise ImageRefused("the file was written by another version of Ramet")
            rows: list[Any] = fields.array(index, "parts")
            found = [(str(name), size) for name, size in rows]
        except (ProtocolError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ImageRefused(f"the list of parts cannot be read: {error!r:.80}") from error
        if tuple(name for name, _ in found) != PARTS:
            raise ImageRefused("the file has other parts than an image")
        for name, size in found:
            most = self._bounds[name]
            if type(size) is not int or not 0 <= size <= most:
                raise ImageRefused(
                    f"{name} of the image has {size!r:.24} bytes, allowed are {most}",
                    hint="memory_mib and disk_mib of the import say how much the image may bring along"
                    if name in ("files", "pages")
                    else None,
                )
        total = sum(size for _, size in found)
        if total > self._terms.room_bytes:
            raise ImageRefused(
                f"the image takes up to {total} bytes on disk, and there is room for {self._terms.room_bytes}",
                hint="ramet images lists what is there, and ramet images rm makes room",
            )
        return dict(found)

    def _blocks(self, name: str, sizes: Mapping[str, int], take: Callable[[int, bytes], object]) -> None:
        """The data of a part, up to the block that begins the next, or the end of the file."""
        number, size, total = PARTS.index(name), sizes[name], sum(sizes.values())
        before = 0
        while True:
            if time.monotonic() > self._deadline:
                raise ImageRefused(f"the file did not arrive within {_SECONDS:.0f} seconds")
            block = self._reader.next()
            if block is None or block.kind == PART:
                if (block is None) != (number + 1 == len(PARTS)) or (block is not None and block.offset != number + 1):
                    raise ImageRefused("the parts of the image are out of order, or one is missing")
                self._done += size
                return
            end = block.offset + len(block.data)
            if block.kind != DATA or not before <= block.offset < end <= size:
                raise ImageRefused("a block of the image lies outside of its part")
            take(block.offset, block.data)
            before = end
            self._progress(self._done + end, total)

    def _to_memory(self, name: str, sizes: Mapping[str, int]) -> bytes:
        data = bytearray(sizes[name])

        def take(offset: int, piece: bytes) -> None:
            data[offset : offset + len(piece)] = piece

        self._blocks(name, sizes, take)
        return bytes(data)

    def _to_file(self, name: str, sizes: Mapping[str, int]) -> None:
        with os.fdopen(os.open(name, _WRITE, 0o600, dir_fd=self._folder), "r+b", buffering=0) as file:
            descriptor = file.fileno()

            def take(offset: int, piece: bytes) -> None:
                rest = memoryview(piece)
                while rest:
                    written = os.pwrite(descriptor, rest, offset)
                    offset += written
                    rest = rest[written:]

            os.ftruncate(descriptor, sizes[name])
            self._blocks(name, sizes, take)
            os.fdatasync(descriptor)

    def _write(self, name: str, data: bytes) -> str:
        with os.fdopen(os.open(name, _WRITE, 0o600, dir_fd=self._folder), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return hashlib.sha256(data).hexdigest()

    def _manifest(self, data: bytes, page_bytes: int) -> Manifest:
        found = Manifest.read(data)
        if found.page_files != (("pages", page_bytes),) or found.open_files:
            raise ImageRefused("the image has other page files than it says")
        at = 0
        for segment in found.segments:
            if segment.kind in (PAGES, FILLED):
                # Each page once: a few pages that are mapped everywhere would fill the memory of the machine.
                if segment.offset != at:
                    raise ImageRefused("the pages of the image are out of order")
                at += segment.end - segment.start
        if at != page_bytes:
            raise ImageRefused("the image has pages that belong nowhere")
        terms = self._terms
        if found.template.interpreter.executable != terms.interpreter.executable:
            here = terms.interpreter.executable
            raise ImageRefused(
                f"the image was made with {found.template.python!r:.100}, and is imported for {here}",
                hint="give that interpreter as python=, if it is installed here",
            )
        if found.template.interpreter != terms.interpreter:
            raise ImageRefused(f"{terms.interpreter.executable} is another version here, or installed elsewhere")
        mapped_files.check_paths(found.files, terms.interpreter)
        return dataclasses.replace(found, id=terms.id, template=terms.template(found.template), imported=True)
