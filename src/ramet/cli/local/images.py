"""ramet images: list, check, move and remove what is kept on disk: templates, saved snapshots, sandboxes."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import NamedTuple

from ramet.cli.described_options import add_options
from ramet.cli.local import image_files
from ramet.cli.output import duration, print_table, progress, shown, size
from ramet.cli.parsing import Commands, new_command
from ramet.errors import RametError
from ramet.freezing.images.stored.figures import kind_of, last_error
from ramet.freezing.images.stored.store import ImageStore
from ramet.freezing.images.stored.verifying import verify
from ramet.isolation.files import cache_folders
from ramet.protocol.requests.operations import ImportOptions

_EXAMPLES = """\
examples:
  ramet images                 what is there
  ramet images verify          read everything, and compare it with its hashes
  ramet images verify loaded
  ramet images export loaded loaded.ramet
                               one file, which only you can read
  ramet images import loaded.ramet again
                               such a file as a snapshot: Sandbox("again")
  ramet images rm loaded       a snapshot that was saved by this name
  ramet images rm sbx_0f3a61c29d4c4b6a9d0e5f7a8b1c2d3e
                               a sandbox that is persistent or hibernated, and that no program has
  ramet images rm --templates  they are written again when they are needed

Images are in ~/.cache/ramet/images (below $XDG_CACHE_HOME, if that is set).
"""


class _Listed(NamedTuple):
    name: str
    kind: str
    id: str
    stored_name: str | None
    size_bytes: int
    used: float


def add_command(commands: Commands) -> None:
    parser = new_command(
        commands,
        "images",
        "list, check, move and remove templates, snapshots and sandboxes on disk",
        __doc__,
        _EXAMPLES,
    )
    parser.add_argument(
        "action", nargs="?", choices=("ls", "rm", "verify", "export", "import"), default="ls", help="ls unless given"
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="snapshots, by the names they were saved as, and ids of sandboxes; export: NAME FILE; import: FILE [NAME]",
    )
    parser.add_argument("--templates", action="store_true", help="with rm: the images of all templates")
    parser.add_argument("--json", action="store_true", help="with ls: print a JSON array")
    add_options(parser, ImportOptions)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    folder = cache_folders.find("images")
    if folder is None:
        raise RametError("there is no folder for images that only you can write", hint="is $HOME yours?")
    store = ImageStore(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        if chosen.action == "rm":
            return _remove(store, chosen)
        if chosen.action == "verify":
            return _verify(store, chosen)
        if chosen.action == "export":
            return image_files.export(store, chosen)
        if chosen.action == "import":
            return image_files.take_in(store, chosen)
        return _list(store, chosen)
    finally:
        store.close()


def _listed(store: ImageStore) -> list[_Listed]:
    found = []
    for image in store.images():
        for stored in image.names or (None,):
            name, kind = "-", "without a name"
            if stored is not None:
                name, kind = _told(store, image.id, stored)
            found.append(_Listed(name, kind, image.id, stored, image.size_bytes, image.used))
    return sorted(found, key=lambda row: (row.kind, row.name, -row.used))


def _told(store: ImageStore, image_id: str, stored: str) -> tuple[str, str]:
    """The name and the kind of an image, by its name in the store."""
    kind = kind_of(stored)
    if kind == "template":
        return _template_name(store, image_id), kind
    if kind == "point":
        return "-", "point of a history"
    if kind == "passing":
        return "-", "on its way in or out"
    for own in (cache_folders.saved_image_name("", ""), cache_folders.space_image_name("", "")):
        if stored.startswith(own):
            return stored.removeprefix(own), kind
    return "-", f"{kind} of a server"


def _template_name(store: ImageStore, image_id: str) -> str:
    try:
        with store.read(image_id) as opened:
            return opened.manifest.template.name
    except (RametError, OSError):
        return "broken"


def _chosen(store: ImageStore, names: list[str]) -> list[_Listed]:
    """Those of these names. Raises RametError for a name that nothing has."""
    rows = [row for row in _listed(store) if row.kind in ("snapshot", "sandbox")]
    missing = set(names) - {row.name for row in rows}
    if missing:
        known = ", ".join(sorted(row.name for row in rows)) or "no snapshots and no sandboxes"
        raise RametError(f"nothing here is named {sorted(missing)[0]!r}; there are: {known}")
    return [row for row in rows if row.name in names]


def _list(store: ImageStore, chosen: argparse.Namespace) -> int:
    rows = _listed(store)
    if chosen.json:
        fields = ("name", "kind", "id", "size_bytes", "used")
        print(json.dumps([{field: getattr(row, field) for field in fields} for row in rows], indent=2))
        return 0
    print_table(
        ("NAME", "KIND", "SIZE", "USED"),
        [
            (row.name, row.kind, size(row.size_bytes), time.strftime("%Y-%m-%d %H:%M", time.localtime(row.used)))
            for row in rows
        ],
    )
    if (failure := last_error(store)) is not None:
        at, what = failure
        print(f"\nlast failure, {duration(time.time() - at)} ago: {shown(what)}")
    return 0


def _remove(store: ImageStore, chosen: argparse.Namespace) -> int:
    if not chosen.names and not chosen.templates:
        raise RametError("say what to remove", hint="ramet images rm NAME, or ramet images rm --templates")
    rows = _chosen(store, chosen.names) if chosen.names else []
    if chosen.templates:
        rows += [row for row in _listed(store) if row.kind == "template"]
    for row in rows:
        if row.stored_name is not None:
            _forget(store, row.stored_name, is_sandbox=row.kind == "sandbox")
    what = "1 image" if len(rows) == 1 else f"{len(rows)} images"
    print(f"removed {what}, {size(sum(row.size_bytes for row in rows))}")
    return 0


def _forget(store: ImageStore, stored: str, is_sandbox: bool) -> None:
    """Raises RametError for a sandbox that a program has."""
    if not is_sandbox:
        store.forget(stored)
        return
    journal = store.journals.open(stored)
    try:
        store.forget(stored)
    finally:
        journal.close(remove=True)


def _verify(store: ImageStore, chosen: argparse.Namespace) -> int:
    rows = _chosen(store, chosen.names) if chosen.names else _listed(store)
    bad = 0
    for row in rows:
        try:
            with progress(f"reading {row.name} ({size(row.size_bytes)})"):
                verify(store, row.id)
            print(f"ok      {row.kind} {row.name}")
        except (RametError, OSError) as error:
            bad += 1
            print(f"broken  {row.kind} {row.name}: {error}")
    return 1 if bad else 0
