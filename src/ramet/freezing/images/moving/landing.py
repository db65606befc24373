"""Makes an image of the store out of what was unpacked: with hashes of its pages, and the MAC of this store."""

from __future__ import annotations

import os

from ramet.freezing.images.manifest import Manifest
from ramet.freezing.images.stored.store import ImageStore, NewImage
from ramet.freezing.images.stored.verifying import hash_pages


def commit_unpacked(store: ImageStore, new: NewImage, manifest: Manifest, name: str) -> None:
    """Raises ImageRefused or OSError; then the name means what it meant before. Blocks."""
    pages = os.open("pages", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=new.folder)
    table = new.create("hashes")
    try:
        hash_pages(store, manifest, pages, table)
    finally:
        os.close(table)
        os.close(pages)
    manifest.check()
    store.commit(new, manifest, name)
