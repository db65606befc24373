"""Two engines at one store: each step of one may come between two steps of the other."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from ramet.freezing.images.stored import store as store_module
from ramet.freezing.images.stored.store import ImageStore
from tests.images.stores import ImageFolder, open_store


def save(store: ImageStore, like: str, name: str) -> tuple[str, int]:
    """An image with the manifest of another one. Returns its id and size."""
    with store.read(like) as found, store.new() as new:
        manifest = replace(found.manifest, id=new.id)
        return new.id, store.commit(new, manifest, name)


def test_a_save_that_another_overtakes_has_worked(warm_store: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine saves by the same name right after it has come to lead to our image."""
    ours, theirs = open_store(warm_store.folder), open_store(warm_store.folder)
    template = warm_store.image.name
    real = store_module._replace
    overtaken: list[str] = []

    def replaced(folder: int, name: str, data: bytes) -> None:
        real(folder, name, data)
        if name == "mine" and not overtaken:
            overtaken.append("")
            overtaken[0], _ = save(theirs, template, "mine")

    monkeypatch.setattr(store_module, "_replace", replaced)
    try:
        image_id, size = save(ours, template, "mine")
        assert size > 0
        assert ours.find("mine") == overtaken[0] != image_id
        left = os.listdir(warm_store.folder / "images")
        assert (overtaken[0] in left, image_id in left) == (True, False)
    finally:
        ours.close()
        theirs.close()
