"""ramet images export, ramet images import: one file for one snapshot."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from ramet.cli.described_options import given_options
from ramet.cli.output import show_progress, size
from ramet.client.arguments import check_image_name, sandbox_spec
from ramet.client.image_files import NewImageFile
from ramet.errors import RametError
from ramet.freezing.images.moving import mapped_files
from ramet.freezing.images.moving.carrier import parts_of
from ramet.freezing.images.moving.landing import commit_unpacked
from ramet.freezing.images.moving.packing import Progress, pack
from ramet.freezing.images.moving.unpacking import unpack
from ramet.freezing.images.stored.store import ImageStore, StoreRoom
from ramet.isolation.files.cache_folders import saved_image_name
from ramet.protocol.import_terms import ImportTerms
from ramet.protocol.requests.operations import ImportOptions
from ramet.protocol.values.specs import SandboxSpec

_ROOM = StoreRoom(templates=4 << 30, saved=64 << 30)


def export(store: ImageStore, chosen: argparse.Namespace) -> int:
    if len(chosen.names) != 2:
        raise RametError("say what to export, and to which file", hint="ramet images export NAME FILE")
    name, path = chosen.names
    image_id = store.find(saved_image_name("", name))
    if image_id is None:
        raise RametError(f"no snapshot is saved as {name!r}", hint="ramet images lists what is there")
    file = NewImageFile(path)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with store.read(image_id) as opened, parts_of(opened) as parts:
            del parts["manifest.json"]
            sources = mapped_files.digests(root, opened.manifest.files)
            pack(opened.manifest, {**parts, "sources": sources}, opened.pages, file.write, _shown(f"exporting {name}"))
        file.finish()
    finally:
        os.close(root)
        file.leave()
        show_progress("")
    print(f"exported {name} to {path}, {size(file.size_bytes)}")
    return 0


def take_in(store: ImageStore, chosen: argparse.Namespace) -> int:
    if len(chosen.names) not in (1, 2):
        raise RametError("say which file to import", hint="ramet images import FILE [NAME]")
    path = chosen.names[0]
    name = chosen.names[1] if len(chosen.names) == 2 else re.sub(r"[^A-Za-z0-9._-]", "-", Path(path).stem)
    check_image_name(name)
    spec = sandbox_spec("default", None, **given_options(chosen, ImportOptions))
    assert isinstance(spec, SandboxSpec)
    stored = saved_image_name("", name)
    room_bytes = store.room_for(stored, _ROOM)
    try:
        with open(path, "rb") as file, store.new() as new:
            terms = ImportTerms(new.id, stored, "", spec.limits, spec.template.interpreter, room_bytes)
            manifest = unpack(file, new.folder, terms, _shown(f"importing {name}"))
            commit_unpacked(store, new, manifest, stored)
    finally:
        show_progress("")
    print(f"imported {path} as {name}")
    return 0


def _shown(what: str) -> Progress:
    """Shows each percent once."""
    told = -1

    def progress(done: int, total: int) -> None:
        nonlocal told
        percent = 100 * done // max(total, 1)
        if percent != told:
            told = percent
            show_progress(f"{what}: {percent} % of {size(total)}")

    return progress
