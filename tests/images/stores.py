"""Programs that make one sandbox each, with a store of images that the test looks into and changes."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ramet.freezing.images.stored.store import ImageStore
from ramet.isolation.files.cache_folders import saved_image_name

SECONDS = 120

# Prints what the engine says of its images, then the results of the cells that it was given.
_PROGRAM = """
import json, sys
from ramet import Sandbox, Template
from ramet.protocol import calls
from tests.engine.frames_client import Line

options = json.loads(sys.argv[1])
template = options.get("template", "default")
if isinstance(template, dict):
    template = Template(**template)
with Sandbox(template) as sandbox:
    results = [sandbox.run_code(code) for code in options["cells"]]
    line = Line()
    facts = line.ask(calls.FACTS)["images"]
    line.close()
    texts, ok = [each.text for each in results], [each.ok for each in results]
    print(json.dumps({"images": facts, "results": texts, "ok": ok}))
"""


def open_store(folder: Path) -> ImageStore:
    return ImageStore(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


class ImageFolder:
    """The folder of images of the programs that `run` starts."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.folder = cache / "ramet" / "images"
        self.variables: dict[str, str] = {}

    def run(self, *cells: str, before: Callable[[], None] | None = None, **options: object) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(_PROGRAM), json.dumps({"cells": cells, **options})],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env={**os.environ, "XDG_CACHE_HOME": str(self.cache), **self.variables},
            preexec_fn=before,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert all(found["ok"]), found["results"]
        return found

    def program(self, source: str, *arguments: str) -> str:
        """Run a whole program. Returns what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source), *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env={**os.environ, "XDG_CACHE_HOME": str(self.cache), **self.variables},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def command(self, *arguments: str) -> str:
        """Run `ramet` with this folder. Returns what it prints."""
        return self.program("import sys; from ramet.cli.main import main; main(sys.argv[1:])", *arguments)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.folder / "names"))

    def images(self) -> list[Path]:
        return sorted((self.folder / "images").iterdir())

    @property
    def image(self) -> Path:
        (only,) = self.images()
        return only

    def saved(self, name: str) -> Path:
        """The image of a snapshot that was saved by this name."""
        return named(self, saved_image_name("", name))

    def change_manifest(self, change: Callable[[dict[str, Any]], None], image: Path | None = None) -> None:
        """As somebody would who has the key of the store."""
        image = image or self.image
        path = image / "manifest.json"
        manifest = json.loads(path.read_bytes())
        change(manifest)
        data = json.dumps(manifest).encode()
        path.write_bytes(data)
        key = (self.folder / "key").read_bytes()
        (image / "manifest.mac").write_bytes(hmac.digest(key, data, hashlib.sha256))

    def change_part(self, name: str, data: bytes, image: Path) -> None:
        """Another file in the image, which its manifest vouches for."""
        (image / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        self.change_manifest(lambda manifest: manifest["digests"].update({name: digest}), image)


def named(store: ImageFolder, prefix: str) -> Path:
    """The image that has the only name that begins like this."""
    (name,) = (name for name in store.names() if name.startswith(prefix))
    return store.folder / "images" / (store.folder / "names" / name).read_text().strip()
