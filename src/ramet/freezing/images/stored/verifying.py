"""Reads a whole image and compares it with the hashes that were written with it."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess

from ramet.freezing.images.manifest import FILLED, PAGES, ImageRefused, Manifest
from ramet.freezing.images.stored.store import ImageStore, OpenImage
from ramet.isolation.launch import HELPER

_MAPPED = struct.Struct("<3Q")


def verify(store: ImageStore, image_id: str) -> None:
    """Raises ImageRefused, with the part that is not as it was written, or OSError. Blocks."""
    with store.read(image_id) as opened:
        for name, _ in opened.manifest.digests:
            opened.part(name)
        if any(name == "state" for name, _ in opened.manifest.digests):
            _verify_files(opened)
        _verify_pages(store, opened)


def _verify_files(opened: OpenImage) -> None:
    expected = json.loads(opened.part("state"))["files"]["sha256"]
    with os.fdopen(opened.open("files"), "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise ImageRefused("the files of the image are not what was written")


def _verify_pages(store: ImageStore, opened: OpenImage) -> None:
    for number in range(len(opened.pages)):
        _verify_page_file(store, opened, number)


def _verify_page_file(store: ImageStore, opened: OpenImage, number: int) -> None:
    table = opened.open("hashes")
    try:
        _run("verify-pages", store, opened.manifest, number, (opened.pages[number], table))
    finally:
        os.close(table)


def hash_pages(store: ImageStore, manifest: Manifest, pages: int, table: int) -> None:
    """Write the hashes of an image that has one page file. Raises ImageRefused. Blocks."""
    _run("hash-pages", store, manifest, 0, (pages, table))


def _run(action: str, store: ImageStore, manifest: Manifest, number: int, descriptors: tuple[int, int]) -> None:
    mapped = sorted(
        (segment.start, segment.end, segment.offset)
        for segment in manifest.segments
        if segment.kind in (PAGES, FILLED) and segment.source == number
    )
    done = subprocess.run(
        [str(HELPER), action, *map(str, descriptors)],
        input=store.hash_key + b"".join(_MAPPED.pack(*each) for each in mapped),
        pass_fds=descriptors, env={}, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ImageRefused(done.stderr.decode("utf-8", "replace").strip() or "the helper program was ended")
