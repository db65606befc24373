"""Files of the system that an image has mapped: by their contents, because times and inodes differ between machines."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterable

from ramet.freezing.images.manifest import FILES_AT_MOST, ImageRefused
from ramet.freezing.images.moving.values import demand
from ramet.isolation.files.skeleton import GUEST_FOLDER, LIBRARY_FOLDER, system_folders
from ramet.isolation.kernel import syscalls
from ramet.protocol.values.specs import Interpreter

_BYTES_AT_MOST = 4 << 30  # of all of them
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def digests(root: int, paths: Iterable[str]) -> bytes:
    """Return hashes of the files, as a part of an image. ``root``: of a pod, or of the machine. Raises OSError."""
    return json.dumps({path: _digest(root, path) for path in sorted(set(paths))}).encode("ascii")


def check_paths(paths: Iterable[str], interpreter: Interpreter) -> None:
    """An image from elsewhere maps only what every pod shows."""
    shown = tuple(f"{tree}/" for tree in (*system_folders(), *interpreter.trees, GUEST_FOLDER, LIBRARY_FOLDER))
    for path in paths:
        parts = path.split("/")
        outside = not path.startswith(shown) or ".." in parts or "." in parts or "" in parts[1:] or "\0" in path
        demand(not outside and len(path) < 4096, f"a mapping of {path!r:.80}, which no pod shows")


def compare(root: int, paths: Iterable[str], part: bytes) -> None:
    """Raises ImageRefused, with its name, where a file is another one than the image was made with. Blocks."""
    expected = read_digests(part)
    left = _BYTES_AT_MOST
    for path in sorted(set(paths)):
        try:
            found = _digest(root, path, left)
        except OSError as error:
            raise ImageRefused(f"{path}, which the image was made with, is not here: {error.strerror}") from error
        if found != expected.get(path):
            raise ImageRefused(
                f"{path} is not the file that the image was made with",
                hint="install the same versions here, or make the image again with these",
            )


def read_digests(part: bytes) -> dict[str, str]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(part)
        few = isinstance(found, dict) and len(found) <= FILES_AT_MOST
        if few and all(isinstance(value, str) for value in found.values()):
            return dict(found)
    raise ImageRefused("the list of the image's files cannot be read")


def _digest(root: int, path: str, most: int = _BYTES_AT_MOST) -> str:
    with os.fdopen(syscalls.open_in_root(root, path, _OPEN), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            raise ImageRefused(f"{path} is no file, or too large")
        return hashlib.file_digest(file, "sha256").hexdigest()
